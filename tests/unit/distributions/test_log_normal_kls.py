import math

import pyro.distributions as dist
import pytest
import torch
from distribution_oracles import as_tensor, assert_finite_with_gradients, assert_near, number, rows
from scipy import integrate, stats
from torch.distributions import kl_divergence

import guides.distributions  # noqa: F401  (registers the divergences)


@pytest.mark.parametrize("row", rows("lognormal_kls"), ids=lambda row: f"{row['mu']}")
def test_gamma_and_inverse_gamma_match_the_reference(row):
    guide = dist.LogNormal(as_tensor(row["mu"]), as_tensor(row["sigma"]))
    half, one = torch.tensor(0.5), torch.tensor(1.0)
    two, three = torch.tensor(2.0), torch.tensor(3.0)
    for key, prior in (
        ("kl_gamma_shape_half_scale_1", dist.Gamma(half, one)),
        ("kl_gamma_shape_half_scale_1e_2", dist.Gamma(half, 100 * one)),
        ("kl_invgamma_half_1", dist.InverseGamma(half, one)),
        ("kl_gamma_2_scale_3", dist.Gamma(two, 1 / three)),
        ("kl_invgamma_2_3", dist.InverseGamma(two, three)),
    ):
        assert_near(kl_divergence(guide, prior), number(row[key]))


@pytest.mark.parametrize("row", rows("ghs_global_scale"), ids=lambda row: row["mu"])
def test_global_scale_of_the_group_horseshoe_matches_the_reference(row):
    guide = dist.LogNormal(as_tensor(row["mu"]), as_tensor(row["sigma"]))
    prior = dist.Gamma(torch.tensor(0.5), as_tensor(row["tau0"]) ** -2)
    assert_near(kl_divergence(guide, prior), number(row["kl"]))


@pytest.mark.parametrize(
    ("loc", "scale", "width"), [(0.0, 1.0, 1.0), (-2.0, 0.4, 0.1), (1.0, 0.2, 5.0)]
)
def test_half_normal_matches_quadrature(loc, scale, width):
    # over log x, where the guide is a plain normal
    def integrand(t):
        log_q = stats.norm.logpdf(t, loc, scale) - t
        log_p = stats.halfnorm.logpdf(math.exp(t), scale=width)
        return stats.norm.pdf(t, loc, scale) * (log_q - log_p)

    truth = integrate.quad(
        integrand, loc - 12 * scale, loc + 12 * scale, epsabs=1e-12, epsrel=1e-12
    )[0]
    guide = dist.LogNormal(torch.tensor(loc), torch.tensor(scale))
    assert_near(kl_divergence(guide, dist.HalfNormal(torch.tensor(width))), truth)


PRIORS = {
    "gamma": lambda a, b: dist.Gamma(a, b),
    "inverse_gamma": lambda a, b: dist.InverseGamma(a, b),
    "half_normal": lambda a, b: dist.HalfNormal(a * b),
}


@pytest.mark.parametrize("name", PRIORS)
def test_gradients_are_those_of_finite_differences(name):
    def divergence(loc, scale, a, b):
        return kl_divergence(dist.LogNormal(loc, scale), PRIORS[name](a, b))

    inputs = [[-1.0, 0.5], [0.3, 1.2], [0.5, 2.0], [1.5, 0.7]]
    inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
    assert torch.autograd.gradcheck(divergence, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PRIORS)
def test_extreme_scales_stay_finite(name, dtype):
    # the guide sits at the scale of the prior; every term is representable
    size = torch.tensor([1e-8, 1e-4, 1.0, 1e4, 1e8], dtype=dtype)
    loc = -size.log() if name == "gamma" else size.log()
    for scale in (1e-8, 1e-2, 1.0):
        one = torch.ones_like(size)
        assert_finite_with_gradients(
            lambda m, s, r, one=one: kl_divergence(dist.LogNormal(m, s), PRIORS[name](one, r)),
            loc,
            scale * one,
            size,
        )


def test_product_of_rate_and_mean_does_not_overflow_before_it_must():
    # e^90 overflows float32, e^90 times the rate e^-85 does not
    loc, scale = torch.tensor(90.0, dtype=torch.float32), torch.tensor(0.1, dtype=torch.float32)
    rate = torch.tensor(math.exp(-85), dtype=torch.float32)
    assert (loc.exp() * rate).isinf()
    kl = kl_divergence(dist.LogNormal(loc, scale), dist.Gamma(torch.ones_like(rate), rate))
    assert torch.isfinite(kl)


@pytest.mark.parametrize(
    "row", rows("half_cauchy_density"), ids=lambda row: f"{row['k']}-{row['z']}"
)
def test_gamma_times_inverse_gamma_is_half_cauchy(row):
    # density of z = sqrt(a b) in the log of a: with b = z²/a, p(z) = ∫ p(a) p(b) (2z/a) a d(log a)
    k, z = number(row["k"]), number(row["z"])

    def density(scale):
        gamma = dist.Gamma(torch.tensor(0.5), torch.tensor(1 / scale))
        inverse = dist.InverseGamma(torch.tensor(0.5), torch.tensor(1.0))
        a = torch.linspace(-60.0, 60.0, 24001).exp()
        logs = gamma.log_prob(a) + inverse.log_prob((z * z / a).clamp(min=1e-280))
        return torch.trapezoid(logs.exp() * 2 * z, a.log())

    assert_near(density(k * k), number(row["density"]), rtol=1e-8)
    assert_near(density(k * k), dist.HalfCauchy(torch.tensor(k)).log_prob(as_tensor(z)).exp(), 1e-8)
    assert_near(density(1 / (k * k)), number(row["density_if_k2_misread_as_rate"]), rtol=1e-8)
