import math

import mpmath
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

from zoo.distributions import LogUniform, SmoothLogUniform


@pytest.mark.parametrize("row", rows("smooth_log_uniform_logpdf"), ids=lambda row: f"{row['w']}")
def test_density_matches_the_reference_on_both_sides(row):
    prior = SmoothLogUniform(as_tensor(row["a"]), as_tensor(row["b"]))
    for sign in (1, -1):
        assert_near(prior.log_prob(sign * as_tensor(row["w"])), number(row["log_prob"]))


@pytest.mark.parametrize("bounds", [(-8.0, 2.0), (-0.5, 0.5), (-20.0, 0.0), (1.0, 1.01)])
def test_density_matches_arbitrary_precision_everywhere(bounds):
    mpmath.mp.dps = 60
    low, high = (mpmath.mpf(b) for b in bounds)
    prior = SmoothLogUniform(*bounds)
    values = torch.logspace(-10, 3, 53)
    for w in values.tolist():
        tails = [mpmath.erfc(w * mpmath.exp(-edge) / mpmath.sqrt(2)) / 2 for edge in (high, low)]
        difference = tails[0] - tails[1]
        truth = mpmath.log(difference) - mpmath.log((high - low) * w)
        assert_near(prior.log_prob(torch.tensor(w)), float(truth), rtol=1e-12, atol=1e-12)


def test_density_integrates_to_one():
    prior = SmoothLogUniform(-8.0, 2.0)
    grid = torch.linspace(-25.0, 5.0, 60001)
    total = 2 * torch.trapezoid((prior.log_prob(grid.exp()) + grid).exp(), grid)
    assert_near(total, 1.0, rtol=1e-6)


def test_follows_the_log_uniform_between_the_bounds():
    w = torch.logspace(-6, -1, 20)
    proper, improper = SmoothLogUniform(-20.0, 5.0), LogUniform()
    difference = proper.log_prob(w) - improper.log_prob(w)
    assert difference.max() - difference.min() < 1e-3


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-3.0, 0.0)])
def test_draws_follow_the_density(bounds):
    assert_fits(SmoothLogUniform(*bounds))


def test_draws_have_the_stated_moments_and_gradients():
    low = torch.tensor(-2.0).expand(40000).clone().requires_grad_()
    prior = SmoothLogUniform(low, 1.0)
    draws = prior.rsample()
    assert_monte_carlo(draws, torch.tensor(0.0))
    assert_monte_carlo(draws.square(), prior.variance[0].detach())
    # one gradient per draw; its mean is the derivative of the variance
    (pathwise,) = torch.autograd.grad(draws.square().sum(), low)
    (exact,) = torch.autograd.grad(prior.variance.sum(), low)
    assert_monte_carlo(pathwise, exact[0])


def test_draws_are_the_scale_mixture_of_its_definition():
    draws = SmoothLogUniform(-2.0, 1.0).sample((20000,))
    mixture = torch.exp(-2 + 3 * torch.rand(20000)) * torch.randn(20000)
    assert stats.ks_2samp(draws.numpy(), mixture.numpy()).pvalue > 2e-5


def test_gradients_are_those_of_finite_differences():
    value = torch.tensor([1e-5, -0.003, 0.02, 0.5, -4.0, 30.0], requires_grad=True)
    low, high = torch.tensor(-6.0, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w, a, b: SmoothLogUniform(a, b).log_prob(w), [value, low, high], rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(-20.0, 0.0), (-8.0, 2.0), (-18.0, 18.0)])
def test_extremes_are_finite_with_finite_gradients(bounds, dtype):
    sizes = torch.tensor([0.0, 1e-30, 1e-8, 1e-4, 1.0, 1e4, 1e8], dtype=dtype)
    low, high = (torch.tensor(b, dtype=dtype) for b in bounds)
    assert_finite_with_gradients(
        lambda w, a, b: SmoothLogUniform(a, b).log_prob(w), torch.cat([sizes, -sizes]), low, high
    )


def test_the_printed_formula_fails_where_ours_does_not():
    prior, normal = SmoothLogUniform(-8.0, 2.0), torch.distributions.Normal(0.0, 1.0)
    for w in (0.0, 300.0):
        w = torch.tensor(w)
        difference = normal.cdf(w * math.exp(8)) - normal.cdf(w * math.exp(-2))
        assert not torch.isfinite((difference / (10 * w)).log())
        assert torch.isfinite(prior.log_prob(w))


def test_impossible_bounds_are_refused():
    with pytest.raises(ValueError, match="low < high"):
        SmoothLogUniform(1.0, 1.0)
