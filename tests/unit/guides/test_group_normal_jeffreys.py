import math

import pytest
import torch

from guides.group_normal_jeffreys import GroupNormalJeffreysGuide

pytestmark = pytest.mark.usefixtures("double_precision")

# z ~ N(mu_z, var_z), w_base ~ N(mu, var): computed with 30 digits.
REFERENCE = {
    "mu_z": 0.9,
    "var_z": 0.04,
    "mu": 0.7,
    "var": 0.05,
    "weight_mean": 0.63,
    "weight_var": 0.0621,
}


def build(shape, group_shape, **options):
    return GroupNormalJeffreysGuide(
        "w", torch.randn(shape), group_shape=torch.Size(group_shape), **options
    )


@torch.no_grad()
def set_site(guide, site, loc, variance):
    guide[f"w_{site}"].loc.copy_(torch.as_tensor(loc))
    guide[f"w_{site}"].log_scale.copy_(0.5 * torch.as_tensor(variance).log())


@pytest.fixture
def at_reference():
    guide = build((2, 3), (1, 3))
    set_site(guide, "z", REFERENCE["mu_z"], REFERENCE["var_z"])
    set_site(guide, "base", REFERENCE["mu"], REFERENCE["var"])
    return guide


def test_weight_moments_equal_the_reference_values(at_reference):
    mean, variance = at_reference.weight_moments()
    assert mean.shape == variance.shape == (2, 3)
    torch.testing.assert_close(
        mean, torch.full((2, 3), REFERENCE["weight_mean"]), rtol=1e-9, atol=0
    )
    torch.testing.assert_close(
        variance, torch.full((2, 3), REFERENCE["weight_var"]), rtol=1e-9, atol=0
    )


def test_score_is_the_log_of_noise_over_signal(at_reference):
    scores = at_reference.group_scores()
    assert scores.shape == (3,)
    expected = math.log(REFERENCE["var_z"] / REFERENCE["mu_z"] ** 2)
    torch.testing.assert_close(scores, torch.full((3,), expected), rtol=1e-9, atol=0)


def test_score_of_a_group_with_mean_zero_is_finite():
    guide = build((2, 3), (1, 3))
    set_site(guide, "z", torch.tensor([0.0, 1e-3, 1.0]), 0.01)
    scores = guide.group_scores()
    assert torch.isfinite(scores).all()
    assert scores[0] > scores[1] > scores[2]


def test_weight_moments_equal_those_of_many_draws():
    guide = build((2, 3), (1, 3))
    set_site(guide, "z", torch.tensor([1.0, -0.4, 0.1]), torch.tensor([0.04, 0.2, 0.5]))
    set_site(guide, "base", torch.randn(2, 3), torch.rand(2, 3) + 0.1)
    torch.manual_seed(0)
    num_draws = 200_000
    drawn = guide.draw(num_draws)
    weights = (drawn["w_base"] * drawn["w_z"].unsqueeze(1)).detach()
    mean, variance = guide.weight_moments()
    error = (variance / num_draws).sqrt()
    assert ((weights.mean(0) - mean).abs() < 5 * error).all()
    squares = (weights - mean).square()
    assert ((squares.mean(0) - variance).abs() < 5 * squares.std(0) / num_draws**0.5).all()


@pytest.mark.parametrize(
    ("shape", "group_shape"), [((2, 3), (1, 3)), ((4, 2, 3, 3), (4, 1, 1, 1)), ((2, 3), (2, 3))]
)
def test_moments_keep_the_shape_of_the_weights(shape, group_shape):
    guide = build(shape, group_shape)
    assert guide.group_scores().shape == (math.prod(group_shape),)
    assert {moment.shape for moment in guide.weight_moments()} == {torch.Size(shape)}


def test_scales_start_at_one_and_weights_where_they_are_told():
    guide = build((2, 3), (1, 3), init_scale=1e-3)
    mean, variance = guide.weight_moments()
    assert torch.equal(mean, guide["w_base"].loc.detach())
    # (s²)(s² + mu²) + s² with both standard deviations s = 1e-3
    expected = 1e-6 * (1e-6 + mean.square()) + 1e-6
    torch.testing.assert_close(variance, expected, rtol=1e-9, atol=0)
