import math

import pyro.distributions as dist
import pytest
import torch
from distribution_oracles import (
    as_tensor,
    assert_finite_with_gradients,
    assert_fits,
    assert_near,
    number,
    rows,
)
from torch.distributions import Normal, kl_divergence

from zoo.distributions import EmpiricalBayesNormal


@pytest.mark.parametrize("row", rows("eb_kl"), ids=lambda row: f"{row['gamma']}")
@pytest.mark.parametrize("scale", [1e-8, 0.3, 1e8])
def test_divergence_and_gradient_depend_on_the_ratio_only(row, scale):
    rho = torch.tensor(scale).log().requires_grad_()
    gamma = as_tensor(row["gamma"], requires_grad=True)
    guide = Normal(gamma * rho.exp(), rho.exp())
    kl = kl_divergence(guide, EmpiricalBayesNormal(guide.loc, guide.scale))
    assert_near(kl, number(row["kl"]))
    by_gamma, by_rho = torch.autograd.grad(kl, [gamma, rho])
    assert_near(by_gamma, gamma / (1 + gamma.square()))
    assert_near(by_rho, 0.0, atol=1e-12)


@pytest.mark.parametrize("row", rows("eb_parameterisation"), ids=lambda row: f"{row['rho']}")
def test_softplus_parameterisation_matches_the_reference(row):
    sigma = torch.nn.functional.softplus(as_tensor(row["rho"]))
    mu = row["gamma"] * sigma
    prior = EmpiricalBayesNormal(mu, sigma)
    assert_near(sigma, number(row["sigma"]))
    assert_near(mu, number(row["mu"]))
    assert_near(prior.variance, number(row["prior_var_optimal"]))
    assert_near(kl_divergence(Normal(mu, sigma), prior), number(row["eb_kl"]))
    assert_near(number(row["gaussian_kl_at_optimum"]), number(row["eb_kl"]))


@pytest.mark.parametrize("row", rows("eb_scalar_type2"), ids=lambda row: f"{row['w_hat']}")
def test_type_two_optimum_of_one_observation_matches_the_reference(row):
    mean, scale = as_tensor(row["q_mean"]), as_tensor(row["q_var"]).sqrt()
    prior = EmpiricalBayesNormal(mean, scale)
    assert_near(prior.variance, number(row["prior_var"]))
    assert_near(kl_divergence(Normal(mean, scale), prior), number(row["kl"]))


def test_detached_guide_parameters_give_the_same_gradient():
    loc = torch.tensor([0.3, -2.0], requires_grad=True)
    scale = torch.tensor([0.2, 0.5], requires_grad=True)
    gradients = []
    for prior in (
        EmpiricalBayesNormal(loc, scale),
        EmpiricalBayesNormal(loc.detach(), scale.detach()),
    ):
        kl = kl_divergence(Normal(loc, scale), prior).sum()
        gradients.append(torch.autograd.grad(kl, [loc, scale]))
    for through, around in zip(*gradients, strict=True):
        assert_near(through, around)


@pytest.mark.parametrize("row", rows("gaussian_kl_scalar"), ids=lambda row: f"{row['mu_q']}")
def test_against_another_normal_it_is_the_gaussian_divergence(row):
    guide = Normal(as_tensor(row["mu_q"]), as_tensor(row["sd_q"]))
    prior = EmpiricalBayesNormal(0.6 * as_tensor(row["sd_p"]), 0.8 * as_tensor(row["sd_p"]))
    assert_near(kl_divergence(guide, prior), kl_divergence(guide, Normal(0.0, prior.scale)))
    if number(row["mu_p"]) == 0:
        assert_near(kl_divergence(guide, prior), number(row["kl"]), atol=1e-15)


def test_gradients_are_those_of_finite_differences():
    inputs = [[0.3, -2.0], [0.2, 0.5], [0.1, 1.0], [0.4, 0.9]]
    inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
    assert torch.autograd.gradcheck(
        lambda m, s, a, b: kl_divergence(Normal(m, s), EmpiricalBayesNormal(a, b)), inputs
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite_with_finite_gradients(dtype):
    sizes = torch.tensor([1e-8, 1e-4, 1.0, 1e4, 1e8], dtype=dtype)
    locs = torch.cat([torch.zeros(1, dtype=dtype), sizes, -sizes])
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(locs, sizes, indexing="ij"))
    assert_finite_with_gradients(
        lambda m, s: kl_divergence(Normal(m, s), EmpiricalBayesNormal(m, s)), loc, scale
    )


def test_the_plain_gaussian_formula_loses_a_tiny_divergence_that_ours_keeps():
    loc, scale = torch.tensor(1e-9), torch.tensor(1.0)
    plain = kl_divergence(Normal(loc, scale), Normal(0.0, torch.hypot(loc, scale)))
    assert plain == 0
    ours = kl_divergence(Normal(loc, scale), EmpiricalBayesNormal(loc, scale))
    assert_near(ours, 0.5e-18, rtol=1e-9, atol=0)


def test_draws_follow_the_density():
    prior = EmpiricalBayesNormal(torch.tensor(0.6), torch.tensor(0.8))
    assert_fits(prior)
    assert_near(prior.log_prob(torch.tensor(0.0)), -0.5 * math.log(2 * math.pi))
    assert isinstance(prior, dist.Normal)
