import itertools
import math

import mpmath
import pyro
import pyro.distributions as dist
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
from torch.distributions import kl_divergence

from guides.distributions import TruncatedLogNormal, TruncatedNormal

ROWS = rows("sbp_truncated_lognormal")
GRID = list(itertools.product([-20.0, -10.0, -1.0, 0.0, 0.1, 2.0, 5.0], [-12, -8, -5, -1, 1, 3, 5]))
# inside, on and beyond either bound
LOCS = torch.tensor([-25.0, -20.0, -7.0, -0.5, 0.0, 0.3, 4.0], dtype=torch.float64)
SCALES = torch.tensor([0.05, 0.7, 3.0, 40.0], dtype=torch.float64)


def prior(low=-20.0, high=0.0):
    return dist.Uniform(torch.tensor(low), torch.tensor(high))


def textbook_kl(loc, scale, low, high):
    """The formula as printed, in the dtype of its arguments."""
    normal = torch.distributions.Normal(torch.zeros_like(loc), torch.ones_like(loc))
    alpha, beta = (low - loc) / scale, (high - loc) / scale
    mass = normal.cdf(beta) - normal.cdf(alpha)
    edge = alpha * normal.log_prob(alpha).exp() - beta * normal.log_prob(beta).exp()
    entropy = (scale * mass).log() + 0.5 * math.log(2 * math.pi * math.e) + edge / (2 * mass)
    return torch.as_tensor(high - low).log() - entropy


class Exact:
    """The same quantities in 60-digit arithmetic."""

    def __init__(self, loc, scale, low=-20, high=0):
        mpmath.mp.dps = 60
        self.loc, self.scale = mpmath.mpf(loc), mpmath.mpf(scale)
        self.low, self.high = mpmath.mpf(low), mpmath.mpf(high)

    @staticmethod
    def density(x):
        return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)

    @staticmethod
    def mass(low, high):
        if low + high > 0:
            low, high = -high, -low
        tail = mpmath.erfc(-high / mpmath.sqrt(2)) - mpmath.erfc(-low / mpmath.sqrt(2))
        return tail / 2

    def kl(self, loc=None, scale=None):
        loc = self.loc if loc is None else loc
        scale = self.scale if scale is None else scale
        alpha, beta = (self.low - loc) / scale, (self.high - loc) / scale
        mass = self.mass(alpha, beta)
        edge = (alpha * self.density(alpha) - beta * self.density(beta)) / (2 * mass)
        entropy = mpmath.log(scale * mass) + mpmath.log(2 * mpmath.pi * mpmath.e) / 2 + edge
        return mpmath.log(self.high - self.low) - entropy

    def kl_gradient(self):
        step = mpmath.mpf(10) ** -20
        by_loc = self.kl(loc=self.loc + step) - self.kl(loc=self.loc - step)
        by_log_scale = self.kl(scale=self.scale * (1 + step)) - self.kl(
            scale=self.scale * (1 - step)
        )
        return by_loc / (2 * step), by_log_scale / (2 * step)

    def log_moment(self, k):
        alpha, beta = (self.low - self.loc) / self.scale, (self.high - self.loc) / self.scale
        shift = k * self.scale
        tilted = self.mass(alpha - shift, beta - shift)
        growth = k * self.loc + k * k * self.scale**2 / 2
        return growth + mpmath.log(tilted) - mpmath.log(self.mass(alpha, beta))

    def mean_and_variance(self):
        alpha, beta = (self.low - self.loc) / self.scale, (self.high - self.loc) / self.scale
        mass = self.mass(alpha, beta)
        first = (self.density(alpha) - self.density(beta)) / mass
        second = (alpha * self.density(alpha) - beta * self.density(beta)) / mass
        return self.loc + self.scale * first, self.scale**2 * (1 + second - first**2)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['mu']}-{row['sigma']}")
def test_moments_and_kl_match_the_reference(row):
    arguments = [as_tensor(row[key]) for key in ("mu", "sigma", "a", "b")]
    theta, log_theta = TruncatedLogNormal(*arguments), TruncatedNormal(*arguments)
    kl = kl_divergence(log_theta, dist.Uniform(arguments[2], arguments[3]))
    assert_near(kl, number(row["kl"]))
    assert_near(theta.mean, number(row["mean"]))
    assert_near(theta.second_moment, number(row["second_moment"]))
    if "snr" in row:
        assert_near(theta.snr, number(row["snr"]))
        assert_near(theta.log_snr, number(row["log_snr"]))
    assert_near(theta.variance, (theta.mean / theta.snr).square())


def test_an_infinite_scale_gives_the_moments_of_the_prior():
    theta = TruncatedLogNormal(torch.tensor(0.0), torch.tensor(1e8), -20.0, 0.0)
    assert_near(theta.mean, 0.049999999896942319)
    assert_near(theta.snr, 0.3333333325699431)


@pytest.mark.parametrize(("loc", "log_scale"), GRID)
def test_kl_its_gradient_and_moments_match_arbitrary_precision(loc, log_scale):
    exact = Exact(loc, math.exp(log_scale))
    mu = torch.tensor(loc, requires_grad=True)
    sigma = torch.tensor(math.exp(log_scale), requires_grad=True)
    guide = TruncatedNormal(mu, sigma, -20.0, 0.0)
    kl = kl_divergence(guide, prior())
    by_mu, by_sigma = torch.autograd.grad(kl, [mu, sigma])
    exact_by_mu, exact_by_log_sigma = exact.kl_gradient()
    assert_near(kl, float(exact.kl()), rtol=1e-12, atol=1e-13)
    assert_near(by_mu, float(exact_by_mu), rtol=1e-9, atol=1e-9)
    assert_near(by_sigma * sigma, float(exact_by_log_sigma), rtol=1e-9, atol=1e-12)
    mean, variance = exact.mean_and_variance()
    assert_near(guide.mean, float(mean), rtol=1e-12)
    assert_near(guide.variance, float(variance), rtol=1e-11, atol=0)
    theta = TruncatedLogNormal(mu, sigma, -20.0, 0.0)
    first, second = exact.log_moment(1), exact.log_moment(2)
    assert_near(theta.mean, float(mpmath.exp(first)), rtol=1e-10, atol=0)
    log_snr = -mpmath.log(mpmath.expm1(second - 2 * first)) / 2
    assert_near(theta.log_snr, float(log_snr), rtol=1e-11, atol=1e-13)


def test_the_printed_formula_fails_where_ours_does_not():
    loc, scale = torch.tensor(5.0), torch.tensor(math.exp(-5))
    assert textbook_kl(loc, scale, -20.0, 0.0).isnan()
    assert_near(kl_divergence(TruncatedNormal(loc, scale, -20.0, 0.0), prior()), 13.605173818)


@pytest.mark.parametrize(
    "row", rows("sbp_inverse_cdf"), ids=lambda row: f"{row['mu']}-{row['sigma']}-{row['u']}"
)
def test_quantiles_and_their_gradients_match_the_reference(row):
    mu, sigma = (
        as_tensor(row["mu"], requires_grad=True),
        as_tensor(row["sigma"], requires_grad=True),
    )
    guide = TruncatedNormal(mu, sigma, number(row["a"]), number(row["b"]))
    quantile = guide.icdf(as_tensor(row["u"]))
    by_mu, by_sigma = torch.autograd.grad(quantile, [mu, sigma])
    # 1 - u carries the rounding of the decimal u, magnified by 1/(1 - u)
    rtol = max(1e-9, 4e-16 / (1 - number(row["u"])))
    assert_near(quantile, number(row["log_theta"]), rtol=rtol)
    assert_near(by_mu, number(row["dlogtheta_dmu"]), rtol=rtol)
    assert_near(by_sigma, number(row["dlogtheta_dsigma"]), rtol=rtol)


@pytest.mark.parametrize("u", [0.01, 0.4, 0.97])
def test_quantile_gradients_match_finite_differences_for_all_parameters(u):
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(LOCS, SCALES[:3], indexing="ij"))
    level = torch.full_like(loc, u)

    def quantile(loc, scale, low, high):
        return TruncatedNormal(loc, scale, low, high).icdf(level)

    inputs = [loc, scale, torch.full_like(loc, -20.0), torch.zeros_like(loc)]
    # keep the differences on one side of the switch between branches at loc = bound
    inputs[0] = torch.where((loc == 0) | (loc == -20), loc + 0.01, loc)
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(quantile, inputs, eps=1e-6, atol=2e-6, rtol=1e-5)


def test_log_prob_kl_and_moments_pass_gradcheck_for_all_parameters():
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(LOCS, SCALES[1:], indexing="ij"))
    inputs = [loc + 0.01, scale, torch.full_like(loc, -20.0), torch.zeros_like(loc)]
    inputs = [x.requires_grad_() for x in inputs]
    for function in (
        lambda *p: TruncatedNormal(*p).log_prob(torch.tensor(-3.0)),
        lambda *p: TruncatedNormal(*p).cdf(torch.tensor(-3.0)),
        lambda *p: TruncatedNormal(*p).mean,
        lambda *p: TruncatedNormal(*p).variance,
        lambda *p: TruncatedLogNormal(*p).mean,
        lambda *p: TruncatedLogNormal(*p).log_snr,
        lambda *p: kl_divergence(TruncatedNormal(*p), dist.Uniform(p[2].detach(), p[3].detach())),
    ):
        # numerical derivatives cross the bounds check of the KL: compare without validation
        with pyro.validation_enabled(False):
            assert torch.autograd.gradcheck(function, inputs, atol=1e-6, rtol=1e-5)


def test_log_prob_and_cdf_match_scipy():
    loc, scale = torch.meshgrid(LOCS[2:5], SCALES, indexing="ij")
    guide = TruncatedNormal(loc, scale, -20.0, 0.0)
    for value in (-19.9, -7.0, -0.6, -0.01):
        frozen = stats.truncnorm(
            (-20 - loc.numpy()) / scale.numpy(), -loc.numpy() / scale.numpy(), loc, scale
        )
        assert_near(guide.log_prob(torch.tensor(value)), frozen.logpdf(value), rtol=1e-8)
        assert_near(guide.cdf(torch.tensor(value)), frozen.cdf(value), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("family", [TruncatedNormal, TruncatedLogNormal])
def test_cdf_inverts_icdf_and_is_0_and_1_at_the_bounds(family):
    loc, scale = torch.meshgrid(LOCS, SCALES, indexing="ij")
    guide = family(loc, scale, -20.0, 0.0)
    levels = torch.tensor([1e-3, 0.2, 0.5, 0.9]).reshape(-1, 1, 1)
    assert_near(guide.cdf(guide.icdf(levels)), levels.expand(4, *loc.shape), rtol=1e-6)
    assert_near(guide.cdf(guide.support.lower_bound), torch.zeros_like(loc))
    assert_near(guide.cdf(guide.support.upper_bound), torch.ones_like(loc))


def test_cdf_at_the_lower_bound_has_finite_gradients():
    loc, scale = torch.tensor(-7.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    share = TruncatedNormal(loc, scale, -20.0, 0.0).cdf(torch.tensor(-20.0))
    assert share == 0
    assert torch.autograd.grad(share, [loc, scale]) == (0, 0)


@pytest.mark.parametrize("loc", [-25.0, -20.0, -7.0, 0.0, 4.0])
@pytest.mark.parametrize("scale", [0.3, 3.0, 40.0])
def test_draws_follow_the_density(loc, scale):
    assert_fits(TruncatedNormal(loc, scale, -20.0, 0.0))
    assert_fits(TruncatedLogNormal(loc / 5, scale / 5, -4.0, 0.0))


def test_draws_have_the_stated_moments():
    loc, scale = torch.meshgrid(LOCS, SCALES, indexing="ij")
    for guide in (
        TruncatedNormal(loc, scale, -20.0, 0.0),
        TruncatedLogNormal(loc, scale, -20.0, 0.0),
    ):
        draws = guide.sample((40000,))
        assert guide.support.check(draws).all()
        # the exponential has a heavy tail below: relative to its size
        assert_monte_carlo(draws / guide.stddev, guide.mean / guide.stddev)


def test_pathwise_gradient_of_the_mean_matches_the_closed_form():
    loc, scale = torch.tensor([-1.0, 2.0, -22.0]), torch.tensor([0.8, 0.5, 3.0])
    loc, scale = loc.requires_grad_(), scale.requires_grad_()
    guide = TruncatedNormal(loc, scale, -20.0, 0.0)
    exact = torch.autograd.grad(guide.mean.sum(), [loc, scale])
    # one gradient per draw: differentiate a batch of copies of the parameters
    copies = [x.detach().expand(40000, 3).clone().requires_grad_() for x in (loc, scale)]
    draws = TruncatedNormal(*copies, -20.0, 0.0).rsample()
    for gradient, truth in zip(torch.autograd.grad(draws.sum(), copies), exact, strict=True):
        assert_monte_carlo(gradient, truth)


def test_draws_far_beyond_a_bound_are_exponential():
    # loc so far out that Φ underflows: b - t is exponential with rate (loc - b)/scale²
    guide = TruncatedNormal(5.0, 1e-3, -20.0, 0.0)
    draws = -guide.sample((20000,)) * 5.0 / 1e-6
    assert_monte_carlo(draws, torch.tensor(1.0))
    assert stats.kstest(draws.numpy(), "expon").pvalue > 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", [TruncatedNormal, TruncatedLogNormal])
def test_extremes_are_finite_with_finite_gradients(family, dtype):
    scales = torch.tensor([1e-8, 1e-4, 1.0, 1e4, 1e8], dtype=dtype)
    locs = torch.tensor([-25.0, -20.0, -3.0, 0.0, 1e-6, 5.0], dtype=dtype)
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(locs, scales, indexing="ij"))
    with torch.random.fork_rng():
        inside = family(loc, scale, -20.0, 0.0).sample()
    names = ["mean", "variance"]
    names += ["second_moment", "snr", "log_snr"] if family is TruncatedLogNormal else []
    for name in names:
        assert_finite_with_gradients(
            lambda m, s, name=name: getattr(family(m, s, -20.0, 0.0), name), loc, scale
        )
    assert_finite_with_gradients(lambda m, s: family(m, s, -20.0, 0.0).rsample(), loc, scale)
    assert_finite_with_gradients(lambda m, s: family(m, s, -20.0, 0.0).log_prob(inside), loc, scale)
    if family is TruncatedNormal:
        bounds = torch.tensor([-20.0, 0.0], dtype=dtype)
        assert_finite_with_gradients(
            lambda m, s: kl_divergence(family(m, s, -20.0, 0.0), dist.Uniform(*bounds)), loc, scale
        )


@pytest.mark.parametrize("level", [0.0, 1e-18, 1.0])
def test_the_ends_of_the_unit_interval_are_harmless(level):
    scales = torch.cat([SCALES, torch.tensor([1e-8, 1e8])])
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(LOCS, scales, indexing="ij"))
    u = torch.tensor(level)
    assert_finite_with_gradients(lambda m, s: TruncatedNormal(m, s, -20.0, 0.0).icdf(u), loc, scale)


def test_float32_agrees_with_float64():
    loc, scale = torch.meshgrid(LOCS, SCALES, indexing="ij")
    single = TruncatedLogNormal(loc.float(), scale.float(), -20.0, 0.0)
    double = TruncatedLogNormal(loc.float().double(), scale.float().double(), -20.0, 0.0)
    for name in ("mean", "variance", "snr"):
        assert_near(getattr(single, name), getattr(double, name).float(), rtol=1e-6, atol=0)


def test_differing_bounds_are_refused_and_both_are_named():
    guide = TruncatedNormal(-1.0, 1.0, -20.0, 0.0)
    with pytest.raises(ValueError, match=r"low=-20, high=0; the prior has low=-10, high=0"):
        kl_divergence(guide, prior(-10.0))
    # bounds that differ by rounding only are the same
    near = dist.Uniform(torch.tensor(-20.0 * (1 + 2e-16)), torch.tensor(0.0))
    assert torch.isfinite(kl_divergence(guide, near))


@pytest.mark.parametrize("bounds", [(0.0, -20.0), (-math.inf, 0.0)])
def test_impossible_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="must be finite with low < high"):
        TruncatedNormal(0.0, 1.0, *bounds)


@pytest.mark.parametrize("family", [TruncatedNormal, TruncatedLogNormal])
def test_density_is_zero_outside_when_validation_is_off(family):
    guide = family(-1.0, 1.0, -20.0, 0.0, validate_args=False)
    outside = torch.tensor([1.5, -21.0])
    assert (guide.log_prob(outside) == -math.inf).all()
    assert guide.cdf(outside).tolist() == [1.0, 0.0]


def test_best_fit_to_the_toy_posterior_is_found():
    row = rows("toy_posteriors", "best_truncated_lognormal")[0]
    x, y = torch.tensor([1.0, 2.0, -1.0, 3.0]), torch.tensor([0.6, 1.1, -0.4, 1.5])
    mu = torch.tensor(-0.5, requires_grad=True)
    log_sigma = torch.tensor(-2.0, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [mu, log_sigma], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def negative_elbo():
        theta = TruncatedLogNormal(mu, log_sigma.exp(), -20.0, 0.0)
        first, second = theta.mean, theta.second_moment
        squares = (y * y - 2 * y * x * first + x * x * second).sum()
        likelihood = -squares / (2 * 0.01) - 2 * math.log(2 * math.pi * 0.01)
        guide = TruncatedNormal(mu, log_sigma.exp(), -20.0, 0.0)
        return kl_divergence(guide, prior()) - likelihood

    def closure():
        optimiser.zero_grad()
        loss = negative_elbo()
        loss.backward()
        return loss

    optimiser.step(closure)
    best = row["best_truncated_lognormal"]
    assert_near(-negative_elbo(), number(best["elbo"]), rtol=1e-7)
    assert_near(mu, number(best["mu"]), rtol=1e-5)
    assert_near(log_sigma.exp(), number(best["sigma"]), rtol=1e-5)
