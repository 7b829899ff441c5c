# ruff: noqa: D401 (docstrings say what a case is)
"""Models that do not suit the data: priors, likelihoods, networks and guides."""

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.verdict_kinds.case import Case, Kinds
from benchmarks.verdict_kinds.problems import (
    bernoulli,
    gaussian,
    linear,
    normal,
    problem,
    signs,
    student_t,
    uniform,
)
from benchmarks.verdict_kinds.shared import (
    RNG,
    fitted_to,
    linear_problem,
    nuts,
    poisson_problem,
    sparse_problem,
    table_problem,
    wave_problem,
)

BAD_MODELS = Kinds()


@BAD_MODELS.add("linear", predict="bad", parameters="bad")
def prior_too_narrow(rng: RNG) -> Case:
    """Normal(0, 0.001) on weights whose size is one."""
    return fitted_to(linear_problem(rng), priors={"*.weight": "Normal(0, 0.001)"})


@BAD_MODELS.add("linear", predict="bad", parameters="bad")
def prior_in_conflict(rng: RNG) -> Case:
    """Normal(5, 0.03) on weights of size one."""
    return fitted_to(linear_problem(rng), priors={"*.weight": "Normal(5, 0.03)"})


@BAD_MODELS.add("logistic", predict="bad", parameters="bad")
def unbalanced_classes(rng: RNG) -> Case:
    """Few rows of one class, and a prior so narrow that the other is always predicted."""
    response = bernoulli(linear(signs(rng, 4, 1.5), -4.5))
    source = problem(rng, normal(4), response, family="bernoulli", rows=600, test=300)
    priors = {"*.weight": "Normal(0, 0.01)"}
    return fitted_to(source, likelihood="bernoulli", priors=priors)


@BAD_MODELS.add("network", predict="bad")
def network_too_small(rng: RNG) -> Case:
    """One hidden unit for a function with five turns; the noise absorbs it."""
    response = gaussian(lambda X: np.sin(4 * X[:, 0]) + np.cos(3 * X[:, 1]), 0.1)
    source = problem(rng, uniform(2), response, family="other", rows=400)
    return fitted_to(source, net="mlp:2-1-1")


@BAD_MODELS.add("network", predict="bad")
def linear_for_a_parabola(rng: RNG) -> Case:
    """A linear model of a square."""
    response = gaussian(lambda X: X[:, 0] ** 2 + X[:, 1] ** 2, 0.2)
    return fitted_to(problem(rng, uniform(2), response, family="other"))


@BAD_MODELS.add("network", predict="bad")
def dead_units(rng: RNG) -> Case:
    """A prior that keeps every hidden unit below zero: the output is a constant."""
    priors = {"0.bias": "Normal(-30, 0.1)"}
    return fitted_to(wave_problem(rng), net="mlp:2-20-1", priors=priors)


@BAD_MODELS.add("linear", predict="good", intervals="good", parameters="bad")
def correlated_inputs(rng: RNG) -> Case:
    """Inputs correlated by 0.95: predictions are right, sds of weights are not."""
    return fitted_to(linear_problem(rng, correlation=0.95))


@BAD_MODELS.add("table", predict="good", intervals="good", parameters="bad")
def table_factorised(rng: RNG) -> Case:
    """Columns for every category, which add up to one, and independent posteriors."""
    return Case("mean_field", {"net": "linear"}, table_problem(rng), table=True)


@BAD_MODELS.add("linear", predict="good", intervals="bad", parameters="bad")
def noise_ten_times_too_large(rng: RNG) -> Case:
    """Noise fixed at ten times its true value."""
    return fitted_to(linear_problem(rng), likelihood="gaussian(noise=5)")


@BAD_MODELS.add("student_t", intervals="bad")
def gaussian_for_heavy_tails(rng: RNG) -> Case:
    """Noise from a t distribution with two degrees of freedom, fitted as Gaussian."""
    source = problem(rng, normal(3), student_t(linear(signs(rng, 3), 0.5), 0.5, 2), family="other")
    return fitted_to(source)


@BAD_MODELS.add("counts", predict="good", intervals="bad")
def overdispersed_counts(rng: RNG) -> Case:
    """Counts with a variance far above their mean, fitted as Poisson."""
    return fitted_to(poisson_problem(rng, shape=1.5, size=0.5, rows=600))


@BAD_MODELS.add("horseshoe", predict="bad", compress="bad")
def horseshoe_too_strong(rng: RNG) -> Case:
    """Sixty rows, weak inputs and a global scale of 1e-8: inputs that matter are pruned."""
    source = sparse_problem(rng, size=0.15, rows=60)
    return fitted_to(source, "group_horseshoe", priors={"*.weight": "GroupHorseshoe(scale=1e-8)"})


def two_modes(y: Tensor) -> None:
    """A parameter of which only the square is observed."""
    theta = pyro.sample("theta", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(theta**2, 4.0), obs=y)


@BAD_MODELS.add("pyro", parameters="bad")
def two_modes_one_guide(rng: RNG) -> Case:
    """A posterior with two modes, and a guide with one."""
    y = torch.tensor(rng.normal(4.0, 4.0, size=20)).float()

    def right(_: Any) -> dict[str, np.ndarray]:
        grid = np.linspace(-6, 6, 4001)
        errors = ((y.numpy()[:, None] - grid**2) ** 2).sum(0)
        log_p = -errors / 32 - grid**2 / 18
        weights = np.exp(log_p - log_p.max())
        drawn = np.random.default_rng(0).choice(grid, size=4000, p=weights / weights.sum())
        return {"theta": drawn}

    return Case(two_modes, {"args": (y,)}, reference=right)


def centred_schools(sigma: Tensor, y: Tensor) -> None:
    """Eight schools, centred."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


@BAD_MODELS.add("pyro", parameters="bad")
def funnel(rng: RNG) -> Case:
    """Eight groups with a common scale, centred: a funnel, and independent posteriors."""
    sigma = torch.tensor(rng.uniform(9.0, 18.0, size=8)).float()
    y = torch.tensor(8 + rng.normal(size=8) * (sigma.numpy() ** 2 + 25) ** 0.5).float()
    return Case(centred_schools, {"args": (sigma, y)}, reference=nuts)
