import math

import pytest
import torch
from distribution_oracles import (
    as_tensor,
    assert_finite_with_gradients,
    assert_fits,
    assert_monte_carlo,
    assert_near,
    number,
    rows,
)
from scipy import stats
from torch.distributions import Uniform, kl_divergence

from guides.distributions import TruncatedLogNormal, TruncatedNormal
from zoo.distributions import TruncatedLogUniform

BOUNDS = [(-20.0, 0.0), (-1.0, 2.0), (0.0, 0.5), (3.0, 3.001)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_density_cdf_and_moments_match_scipy(bounds):
    prior = TruncatedLogUniform(*bounds)
    frozen = stats.loguniform(math.exp(bounds[0]), math.exp(bounds[1]))
    value = prior.icdf(torch.tensor([0.01, 0.5, 0.99]))
    assert_near(prior.log_prob(value), frozen.logpdf(value.numpy()), rtol=1e-8, atol=1e-10)
    assert_near(prior.cdf(value), torch.tensor([0.01, 0.5, 0.99]), rtol=1e-8)
    assert_near(prior.mean, frozen.mean(), rtol=1e-8)
    rtol = 1e-8 if bounds[1] - bounds[0] > 0.1 else 1e-3  # scipy loses digits on narrow intervals
    assert_near(prior.variance, frozen.var(), rtol=rtol, atol=0)


def test_variance_of_a_narrow_interval_keeps_its_digits():
    width = 1e-6
    prior = TruncatedLogUniform(-width / 2, width / 2)
    assert_near(prior.variance, width**2 / 12, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_draws_follow_the_density_and_stay_inside(bounds):
    prior = TruncatedLogUniform(*bounds)
    draws = prior.sample((20000,))
    assert prior.support.check(draws).all()
    assert_monte_carlo(draws, prior.mean)
    if bounds[0] > -20:  # the histogram of the test cannot resolve nine decades
        assert_fits(prior)
    assert stats.kstest(prior.cdf(draws).numpy(), "uniform").pvalue > 2e-5


def test_draws_carry_gradients_to_the_bounds():
    low, high = torch.tensor([-2.0], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    level = torch.tensor([0.3])
    assert torch.autograd.gradcheck(lambda a, b: TruncatedLogUniform(a, b).icdf(level), [low, high])
    for name in ("mean", "variance"):
        assert torch.autograd.gradcheck(
            lambda a, b, name=name: getattr(TruncatedLogUniform(a, b), name), [low, high]
        )


@pytest.mark.parametrize("row", rows("sbp_truncated_lognormal"), ids=lambda row: f"{row['mu']}")
def test_divergence_is_the_same_number_as_on_the_log_scale(row):
    arguments = [as_tensor(row[key]) for key in ("mu", "sigma", "a", "b")]
    kl = kl_divergence(TruncatedLogNormal(*arguments), TruncatedLogUniform(*arguments[2:]))
    assert_near(kl, number(row["kl"]))
    assert kl == kl_divergence(TruncatedNormal(*arguments), Uniform(*arguments[2:]))


def test_divergence_matches_monte_carlo():
    guide, prior = TruncatedLogNormal(-1.0, 0.8, -5.0, 0.0), TruncatedLogUniform(-5.0, 0.0)
    draws = guide.sample((50000,))
    assert_monte_carlo(guide.log_prob(draws) - prior.log_prob(draws), kl_divergence(guide, prior))


def test_differing_bounds_are_refused():
    with pytest.raises(ValueError, match=r"low=-20, high=0; the prior has low=-20, high=1"):
        kl_divergence(TruncatedLogNormal(0.0, 1.0, -20.0, 0.0), TruncatedLogUniform(-20.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite_with_finite_gradients(dtype):
    low = torch.tensor([-20.0, -20.0, 15.0, -18.5], dtype=dtype)
    high = torch.tensor([18.5, 0.0, 18.5, -18.0], dtype=dtype)
    middle = (0.5 * (low + high)).exp()
    for function in (
        lambda a, b: TruncatedLogUniform(a, b).mean,
        lambda a, b: TruncatedLogUniform(a, b).variance,
        lambda a, b: TruncatedLogUniform(a, b).log_prob(middle),
        lambda a, b: TruncatedLogUniform(a, b).rsample(),
    ):
        assert_finite_with_gradients(function, low, high)


def test_density_is_zero_outside_when_validation_is_off():
    prior = TruncatedLogUniform(-2.0, 1.0, validate_args=False)
    outside = torch.tensor([0.1, 3.0, -1.0])
    assert (prior.log_prob(outside) == -math.inf).all()
    assert prior.cdf(outside).tolist() == [0.0, 1.0, 0.0]


def test_impossible_bounds_are_refused():
    with pytest.raises(ValueError, match="low < high"):
        TruncatedLogUniform(1.0, 1.0)
