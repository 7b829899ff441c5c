import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch.distributions import kl_divergence

from guides.distributions import TruncatedNormal
from guides.structured_bp import ABOVE, StructuredBPGuide
from zoo.distributions import TruncatedLogUniform

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")

# mu, sigma, KL, E theta and log SNR for bounds -20 and 0; computed with 30 digits.
REFERENCE = [
    (0.0, math.exp(-5), 7.2699409209092636, 0.99464651498146415, 5.5081698055090583),
    (-1.0, 0.5, 2.348201692917217, 0.39806875144840171, 0.7748750536632763),
    (-3.0, 2.0, 1.0568823282457454, 0.12163040422221434, -0.42154687955912319),
    (-10.0, 5.0, 0.12705308843264642, 0.017229050968037332, -1.5559465901911051),
    (0.0, 1.0, 2.2699409209092636, 0.52315658373024674, 0.73833037391706582),
    (0.0, math.exp(5), 3.6600424105441089e-6, 0.050149102023491203, -1.0969767121188884),
    (-5.0, 0.01, 6.1819639263374096, 0.0067382839048579955, 4.605145185779758),
    (2.0, 0.3, 5.1384989953692459, 0.95858414679613122, 3.2003779439567999),
]
AT_LOWER_BOUND = (-20.0, 1.0, 2.2699409209092636, 5.7182295513319637e-9, 0.065974449440667933)


def prior(size):
    return TruncatedLogUniform(torch.tensor(-20.0), torch.tensor(0.0)).expand([size]).to_event(1)


def build(size, **options):
    return StructuredBPGuide("theta", torch.ones(size), low=-20.0, high=0.0, **options)


@torch.no_grad()
def at(rows, **options):
    guide = build(len(rows), **options)
    locs, scales = (torch.tensor([row[k] for row in rows]) for k in (0, 1))
    guide["theta"].put(locs, scales.log())
    torch.testing.assert_close(guide["theta"].loc, locs)
    return guide


@torch.no_grad()
def test_divergence_means_and_scores_have_the_reference_values():
    guide = at(REFERENCE)
    q = guide.multipliers()
    kl = kl_divergence(q, prior(len(REFERENCE)).base_dist)
    wanted = torch.tensor(REFERENCE)
    torch.testing.assert_close(kl, wanted[:, 2], rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(guide.means(), wanted[:, 3], rtol=1e-9, atol=0.0)
    torch.testing.assert_close(guide.group_scores(), -wanted[:, 4], rtol=1e-6, atol=0.0)


def test_units_with_a_ratio_above_one_are_below_the_threshold():
    guide = at(REFERENCE)
    kept = guide.group_scores() <= guide.default_threshold
    assert kept.tolist() == [row[4] > 0 for row in REFERENCE]
    assert guide.group_shape == (len(REFERENCE),)


def test_steady_multiplier_of_almost_nothing_is_removed():
    guide = at([*REFERENCE[:2], AT_LOWER_BOUND])
    assert (guide.group_scores() <= 0).tolist() == [True, True, False]
    # Alone in its layer it is the largest, and all that there is.
    assert float(at([AT_LOWER_BOUND]).group_scores().detach()) == pytest.approx(-AT_LOWER_BOUND[4])


def test_starts_at_the_upper_bound():
    guide = build(3, init_scale=math.exp(-5))
    torch.testing.assert_close(guide["theta"].loc.detach(), torch.zeros(3))
    torch.testing.assert_close(guide.means().detach(), torch.full((3,), REFERENCE[0][3]))
    # The median of a half-normal is 0.6744898 standard deviations from the bound.
    median = math.exp(-0.67448975019608174 * math.exp(-5))
    torch.testing.assert_close(guide.medians()["theta"], torch.full((3,), median))


@torch.no_grad()
def test_parameters_far_outside_do_not_leave_the_family():
    guide = build(4)
    guide["theta"].level.copy_(torch.tensor([1e3, -1e3, -10.0, 0.0]))
    guide["theta"].log_scale.copy_(torch.tensor([0.0, 0.0, 1e3, -1e3]))
    q = guide.multipliers()
    torch.testing.assert_close(q.loc, torch.tensor([ABOVE, -20.0, -10.0, 0.0]))
    assert torch.isfinite(q.log_prob(q.icdf(torch.full((4,), 0.3)))).all()
    kl = kl_divergence(q, prior(4).base_dist)
    assert torch.isfinite(kl).all()
    draws = torch.stack([guide.sample_sites()["theta"] for _ in range(20)])
    assert ((draws >= math.exp(-20)) & (draws <= 1)).all()


def test_parameters_beyond_their_bounds_have_gradients_again_after_a_step():
    guide = build(4)
    posterior = guide["theta"]
    with torch.no_grad():
        posterior.level.copy_(torch.tensor([1e3, -1e3, -9.0, 0.0]))
        posterior.log_scale.copy_(torch.tensor([0.0, 0.0, 1e3, -1e3]))

    def gradients():
        kl = kl_divergence(guide.multipliers(), prior(4).base_dist).sum()
        return torch.autograd.grad(kl, [posterior.level, posterior.log_scale])

    before = [gradient.clone() for gradient in gradients()]
    assert not before[0][:2].any()
    assert not before[1][2:].any()
    posterior.constrain()
    after = gradients()
    assert after[0].all()
    assert after[1].all()
    torch.testing.assert_close(posterior.loc[:2].detach(), torch.tensor([ABOVE, -20.0]))
    torch.testing.assert_close(posterior.log_scale[2].detach().exp(), torch.tensor(20.0))


@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0, 20.0])
def test_level_is_about_the_mean_of_the_logarithm(scale):
    guide = build(1)
    guide["theta"].put(torch.tensor([-12.0]), torch.tensor([math.log(scale)]))
    q = guide.multipliers()
    mean = TruncatedNormal(q.loc, q.scale, q.low, q.high).mean
    # The truncated variance lies between both limits; in between the formula is off by up to 0.4.
    assert float((guide["theta"].level - mean).detach()) == pytest.approx(0.0, abs=0.4)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_weight_of_the_divergence_is_in_the_objective_and_not_in_the_density(scale):
    guide = at(REFERENCE, kl_scale=scale)

    def model():
        pyro.sample("theta", prior(len(REFERENCE)))

    with torch.no_grad():
        loss = TraceMeanField_ELBO().loss(model, guide)
    assert loss == pytest.approx(scale * sum(row[2] for row in REFERENCE), rel=1e-6)
    theta = guide.medians()
    wanted = guide.distributions()["theta"].log_prob(theta["theta"])
    torch.testing.assert_close(guide.log_density(theta), wanted)


def test_draws_carry_gradients_to_both_parameters():
    guide = build(3, init_scale=0.3)
    guide.sample_sites()["theta"].sum().backward()
    assert guide["theta"].level.grad.all()
    assert guide["theta"].log_scale.grad.all()


def test_many_draws_are_one_call():
    guide = build(3, init_scale=0.3)
    draws = guide.draw(1000)["theta"]
    assert draws.shape == (1000, 3)
    error = draws.std(0) / math.sqrt(1000)
    assert ((draws.mean(0) - guide.means()).abs() < 5 * error).all()


def test_same_family_in_a_model_of_anybody():
    """The guide is usable without the zoo."""
    one = torch.ones(())

    def model(x, y):
        theta = pyro.sample("theta", dist.Uniform(0 * one, one).expand([2]).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(x @ theta, 0.1), obs=y)

    x = torch.randn(20, 2)
    guide = StructuredBPGuide("theta", torch.ones(2), low=-20.0, high=0.0)
    loss = TraceMeanField_ELBO().differentiable_loss(model, guide, x, x @ torch.tensor([0.5, 0.9]))
    assert torch.isfinite(loss)
