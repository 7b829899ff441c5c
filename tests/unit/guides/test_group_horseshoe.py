import math

import pytest
import torch

from guides.group_horseshoe import GroupHorseshoeGuide

pytestmark = pytest.mark.usefixtures("double_precision")
SCALES = ("global_a", "global_b", "local_a", "local_b")

# log z ~ N(m, v), w_base ~ N(mu, var): computed with 30 digits.
REFERENCE = {
    "m": 0.1,
    "v": 0.25,
    "mu": 0.7,
    "var": 0.05,
    "z_mode": 0.86070797642505781,
    "score": 0.15,
    "weight_mean": 0.87662590133430504,
    "weight_var": 0.3189534911438746,
}


def build(shape, group_shape, *, tau=1e-5, init_scale=0.01, base=None):
    return GroupHorseshoeGuide(
        "w",
        torch.randn(shape) if base is None else base,
        global_scale=tau,
        group_shape=torch.Size(group_shape),
        init_scale=init_scale,
    )


@torch.no_grad()
def set_site(guide, site, loc, variance):
    guide[f"w_{site}"].loc.fill_(loc)
    guide[f"w_{site}"].log_scale.fill_(0.5 * math.log(variance))


@pytest.fixture
def at_reference():
    """A guide whose four scales add up to m and v of the reference row."""
    guide = build((2, 3), (1, 3))
    locs, variances = (0.5, -0.4, 0.3, -0.2), (0.1, 0.2, 0.3, 0.4)
    assert sum(locs) / 2 == pytest.approx(REFERENCE["m"])
    assert sum(variances) / 4 == pytest.approx(REFERENCE["v"])
    for site, loc, variance in zip(SCALES, locs, variances, strict=True):
        set_site(guide, site, loc, variance)
    set_site(guide, "base", REFERENCE["mu"], REFERENCE["var"])
    return guide


def test_moments_of_the_log_scale_add_up_over_the_four_scales(at_reference):
    mean, variance = at_reference.log_scale_moments()
    assert torch.allclose(mean, torch.full((3,), REFERENCE["m"]), rtol=1e-12)
    assert torch.allclose(variance, torch.full((3,), REFERENCE["v"]), rtol=1e-12)


def test_weight_moments_equal_the_reference_values(at_reference):
    mean, variance = at_reference.weight_moments()
    assert torch.allclose(mean, torch.full((2, 3), REFERENCE["weight_mean"]), rtol=1e-10)
    assert torch.allclose(variance, torch.full((2, 3), REFERENCE["weight_var"]), rtol=1e-10)


def test_group_score_is_minus_the_log_of_the_mode_of_the_scale(at_reference):
    scores = at_reference.group_scores()
    assert torch.allclose(scores, torch.full((3,), REFERENCE["score"]), rtol=1e-10)
    assert torch.allclose(scores, torch.full((3,), -math.log(REFERENCE["z_mode"])), rtol=1e-10)


@torch.no_grad()
def test_weight_moments_equal_those_of_many_draws():
    guide = build((2, 3), (2, 1), init_scale=0.3, tau=0.1)
    for name in guide.names:
        guide[name].loc.add_(0.2 * torch.randn(guide[name].loc.shape))
    num = 100_000
    draws = guide.draw(num)
    z = math.prod(draws[f"w_{site}"].reshape(num, -1, 1) for site in SCALES).sqrt()
    weights = draws["w_base"] * z
    mean, variance = guide.weight_moments()
    error = (weights.mean(0) - mean) / (weights.std(0) / num**0.5)
    assert error.abs().max() < 5, error
    squares = (weights - mean).square()
    error = (squares.mean(0) - variance) / (squares.std(0) / num**0.5)
    assert error.abs().max() < 5, error


@pytest.mark.parametrize("tau", [1e-10, 1e-5, 1.0, 100.0])
def test_every_group_starts_with_scale_one(tau):
    base = torch.randn(2, 3)
    guide = build((2, 3), (1, 3), tau=tau, init_scale=0.02, base=base)
    assert guide["w_global_a"].loc.item() == pytest.approx(2 * math.log(tau), abs=1e-12)
    assert guide["w_global_b"].loc.item() == pytest.approx(-2 * math.log(tau), abs=1e-12)
    mean, variance = guide.log_scale_moments()
    assert torch.allclose(mean, torch.zeros(3), atol=1e-12)
    assert torch.allclose(variance, torch.full((3,), 0.02**2), rtol=1e-12)
    assert torch.equal(guide["w_base"].loc, base)


def test_moments_keep_the_group_shape_of_convolutions():
    guide = build((4, 2, 3, 3), (4, 1, 1, 1))
    assert guide.group_scores().shape == (4,)
    mean, variance = guide.weight_moments()
    assert mean.shape == variance.shape == (4, 2, 3, 3)
    assert (variance > 0).all()


def test_larger_scale_means_lower_score():
    guide = build((2, 3), (1, 3))
    with torch.no_grad():
        guide["w_local_a"].loc.copy_(torch.tensor([-8.0, 0.0, 2.0]))
    scores = guide.group_scores()
    assert scores[0] > scores[1] > scores[2]
