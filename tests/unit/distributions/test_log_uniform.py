import math

import mpmath
import pyro.distributions as dist
import pytest
import torch
from distribution_oracles import assert_finite_with_gradients, assert_near, number, rows
from scipy import special
from torch.distributions import kl_divergence

from zoo.distributions import LogUniform, dawson, kl_log_uniform

LOG_ALPHAS = rows("log_uniform_kl")


def at(log_alpha, loc=0.7):
    loc = torch.tensor(loc)
    return loc, loc * math.exp(0.5 * log_alpha)


@pytest.mark.parametrize("row", LOG_ALPHAS, ids=lambda row: f"{row['log_alpha']}")
def test_both_forms_match_the_reference(row):
    log_alpha = torch.tensor(float(row["log_alpha"]), requires_grad=True)
    for method, key in (("approximate", "molchanov"), ("exact", "exact")):
        loc = torch.tensor(0.7)
        kl = kl_log_uniform(loc, loc * (0.5 * log_alpha).exp(), method=method)
        assert_near(kl, number(row[key]))
        (slope,) = torch.autograd.grad(kl, log_alpha)
        assert_near(slope, number(row[f"d_{key}_dlogalpha"]))


def test_registered_divergence_is_the_approximation_and_ignores_the_sign():
    loc, scale = torch.tensor([0.3, -0.3, 2.0]), torch.tensor([0.1, 0.1, 5.0])
    kl = kl_divergence(dist.Normal(loc, scale), LogUniform())
    assert_near(kl, kl_log_uniform(loc, scale))
    assert kl[0] == kl[1]


@pytest.mark.parametrize("u", [1e-12, 1e-3, 0.5, 5.0, 20.0, 49.9, 50.1, 80.0, 1e4, 1e12])
def test_exact_form_matches_the_hypergeometric_function(u):
    mpmath.mp.dps = 30
    if u < 1e3:
        truth = u * mpmath.hyp2f2(1, 1, mpmath.mpf(3) / 2, 2, -u)
    else:
        truth = mpmath.log(u) / 2 + mpmath.log(2) + mpmath.euler / 2
        truth -= 1 / mpmath.mpf(4 * u) + 3 / (16 * mpmath.mpf(u) ** 2)
    kl = kl_log_uniform(torch.tensor(math.sqrt(2 * u)), torch.tensor(1.0), method="exact")
    assert_near(kl, float(truth), rtol=1e-12, atol=0)


def test_dawson_matches_scipy_over_the_whole_range():
    x = torch.cat([torch.linspace(-20.0, 20.0, 4001), torch.logspace(-12, 12, 200)])
    assert_near(dawson(x), torch.from_numpy(special.dawsn(x.numpy())), rtol=1e-12, atol=0)
    assert_near(dawson(x.float()), dawson(x.float().double()).float(), rtol=1e-6, atol=0)


def test_exact_form_equals_the_expectation_it_stands_for():
    # E log|1 + sqrt(alpha) eps| - ½ log alpha + (gamma + log 2)/2, by quadrature
    for log_alpha in (-2.0, 0.0, 2.0):
        root = mpmath.exp(log_alpha / 2)

        def integrand(x, root=root):
            return mpmath.log(abs(1 + root * x)) * mpmath.npdf(x)

        mean = mpmath.quad(integrand, [-12, -1 / root, 0, 12] if root > 1 / 12 else [-12, 0, 12])
        truth = mean - log_alpha / 2 + (mpmath.euler + mpmath.log(2)) / 2
        assert_near(kl_log_uniform(*at(log_alpha), method="exact"), float(truth), rtol=1e-8)


def test_approximation_is_within_its_published_error_and_never_negative():
    log_alpha = torch.linspace(-9.9, 9.9, 500)
    loc = torch.ones_like(log_alpha)
    scale = (0.5 * log_alpha).exp()
    error = kl_log_uniform(loc, scale) - kl_log_uniform(loc, scale, method="exact")
    assert error.abs().max() < 0.0094
    assert (kl_log_uniform(loc, scale) > 0).all()


@pytest.mark.parametrize("method", ["approximate", "exact"])
def test_gradients_are_those_of_finite_differences(method):
    loc = torch.tensor([0.3, -2.0, 0.01, 5.0], requires_grad=True)
    scale = torch.tensor([0.2, 0.1, 0.3, 0.4], requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda m, s: kl_log_uniform(m, s, method=method), [loc, scale], rtol=1e-5
    )


def test_gradient_identity_between_mean_and_rate():
    # ∂KL/∂θ = −2 (∂KL/∂α) σ²/θ³, here with ∂KL/∂α from ∂KL/∂σ = (∂KL/∂α) 2σ/θ²
    loc = torch.tensor([0.3, -2.0], requires_grad=True)
    scale = torch.tensor([0.2, 0.5], requires_grad=True)
    for method in ("approximate", "exact"):
        kl = kl_log_uniform(loc, scale, method=method).sum()
        by_loc, by_scale = torch.autograd.grad(kl, [loc, scale])
        assert_near(by_loc, -by_scale * scale / loc, rtol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["approximate", "exact"])
def test_extremes_are_finite_with_finite_gradients(method, dtype):
    sizes = torch.tensor([1e-8, 1e-4, 1.0, 1e4, 1e8], dtype=dtype)
    locs = torch.cat([torch.zeros(1, dtype=dtype), sizes, -sizes])
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(locs, sizes, indexing="ij"))
    assert_finite_with_gradients(lambda m, s: kl_log_uniform(m, s, method=method), loc, scale)
    assert (kl_log_uniform(loc, scale, method=method) >= 0).all()
    assert_finite_with_gradients(LogUniform().log_prob, locs)


def test_the_naive_formula_fails_where_ours_does_not():
    loc, scale = torch.tensor(0.0, requires_grad=True), torch.tensor(1.0)
    alpha = (scale / loc).square()
    naive = 0.63576 * torch.sigmoid(-(1.8732 + 1.48695 * alpha.log())) + 0.5 * (1 + 1 / alpha).log()
    assert torch.autograd.grad(naive, loc)[0].isnan()
    for method in ("approximate", "exact"):
        (gradient,) = torch.autograd.grad(kl_log_uniform(loc, scale, method=method), loc)
        assert gradient == 0


def test_density_is_that_of_a_normal_scale_mixture_with_a_jeffreys_scale():
    # ∫ |z|⁻¹ N(w | 0, z²) dz over the real line is 1/|w|: differences of log_prob agree with it
    def mixture(w):
        z = torch.linspace(-14.0, 14.0, 20001).exp()
        return 2 * torch.trapezoid(dist.Normal(0.0, z).log_prob(w).exp(), z.log())

    small, large = torch.tensor(0.02), torch.tensor(3.0)
    prior = LogUniform()
    difference = prior.log_prob(small) - prior.log_prob(large)
    assert_near(difference, mixture(small).log() - mixture(large).log(), rtol=1e-4)


@pytest.mark.parametrize("row", rows("gnj_weight_kl"), ids=lambda row: f"{row['mu']}")
@pytest.mark.parametrize("z", [-3.0, 0.01, 1.0])
def test_weights_of_the_normal_jeffreys_group_do_not_depend_on_the_scale(row, z):
    z = torch.tensor(z)
    guide = dist.Normal(z * number(row["mu"]), z.abs() * number(row["var"]) ** 0.5)
    assert_near(kl_divergence(guide, dist.Normal(0.0, z.abs())), number(row["kl"]), atol=1e-12)


def test_unknown_method_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'approximate' or 'exact'\. Got 'cubic'"):
        kl_log_uniform(torch.tensor(1.0), torch.tensor(1.0), method="cubic")
