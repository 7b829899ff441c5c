"""Problems and Pyro models that several kinds share."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.verdict_kinds.case import Case
from benchmarks.verdict_kinds.problems import (
    Array,
    Problem,
    bernoulli,
    gaussian,
    linear,
    normal,
    poisson,
    problem,
    signs,
    uniform,
)

RNG = np.random.Generator


def fitted_to(source: Problem, method: str = "mean_field", **options: Any) -> Case:
    """Return a fit of a linear model to arrays, unless the options say otherwise."""
    return Case(method, {"net": "linear", "data": source.dataset(), **options}, source)


def linear_problem(rng: RNG, *, columns: int = 3, noise: float = 0.5, **options: Any) -> Problem:
    """Return a linear regression with weights of size one."""
    inputs = normal(columns, correlation=options.pop("correlation", 0.0))
    return problem(rng, inputs, gaussian(linear(signs(rng, columns), 0.5), noise), **options)


def logistic_problem(rng: RNG, *, columns: int = 4, size: float = 1.0, **options: Any) -> Problem:
    """Return a logistic regression."""
    response = bernoulli(linear(signs(rng, columns, size), 0.3))
    options = {"rows": 400, "test": 200, "family": "bernoulli", **options}
    return problem(rng, normal(columns), response, **options)


def poisson_problem(
    rng: RNG, *, shape: float | None = None, size: float = 0.3, rows: int = 300, **options: Any
) -> Problem:
    """Return counts with a mean near three."""
    response = poisson(linear(signs(rng, 3, size), 1.0), shape=shape)
    return problem(rng, normal(3), response, family="poisson", rows=rows, **options)


def wave(X: Array) -> Array:
    """Return a smooth function of two inputs that is far from linear."""
    return np.asarray(np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] ** 2 - 0.7)


def wave_problem(rng: RNG, *, noise: float = 0.2, rows: int = 400, **options: Any) -> Problem:
    """Return a regression for a small network."""
    return problem(rng, uniform(2), gaussian(wave, noise), family="other", rows=rows, **options)


def ring(X: Array) -> Array:
    """Return log odds that are positive inside a circle."""
    return np.asarray(4.0 - 2.5 * (X**2).sum(1))


def ring_problem(rng: RNG, *, rows: int = 400, **options: Any) -> Problem:
    """Return two classes, one around the other, for a small network."""
    source = problem(rng, uniform(2), bernoulli(ring), family="bernoulli", rows=rows, test=200)
    return Problem("categorical", source.train, source.test, source.fresh, **options)


def sparse_problem(
    rng: RNG, *, columns: int = 20, size: float = 1.0, rows: int = 300, noise: float = 0.5
) -> Problem:
    """Return a linear regression where four inputs matter."""
    active = tuple(sorted(rng.choice(columns, size=4, replace=False).tolist()))
    weights = np.zeros(columns)
    weights[list(active)] = signs(rng, 4, size)
    response = gaussian(linear(weights, 0.5), noise)
    return problem(rng, normal(columns), response, rows=rows, active=active)


def table_inputs(rng: RNG, number: int) -> pd.DataFrame:
    """Return a table with two columns of numbers on their own scales and one of text."""
    return pd.DataFrame(
        {
            "age": rng.normal(45.0, 12.0, size=number),
            "income": rng.normal(3000.0, 800.0, size=number),
            "region": rng.choice(["east", "north", "south", "west"], size=number),
        }
    )


def table_mean(X: pd.DataFrame) -> Array:
    """Return the expected price of a row of the table."""
    region = X["region"].map({"east": 0.0, "north": 6.0, "south": -4.0, "west": 10.0})
    return np.asarray(50 + 0.5 * (X["age"] - 45) + 0.008 * (X["income"] - 3000) + region)


def table_problem(rng: RNG, *, noise: float = 4.0, rows: int = 300) -> Problem:
    """Return a regression on a table with a column of text."""
    return problem(rng, table_inputs, gaussian(table_mean, noise), rows=rows, test=75)


# ---------------------------------------------------------------------- Pyro models


def regression_model(X: Tensor, y: Tensor) -> None:
    """Linear regression with unknown noise."""
    w = pyro.sample("w", dist.Normal(torch.zeros(X.shape[1]), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(X @ w + b, sigma), obs=y)


def pyro_regression(rng: RNG, *, correlation: float = 0.0, rows: int = 200) -> dict[str, Any]:
    """Return the arguments of `regression_model`."""
    source = linear_problem(rng, correlation=correlation, rows=rows).train
    return {"args": (torch.tensor(source.X).float(), torch.tensor(source.y).float())}


def nuts(fitted: Any) -> Mapping[str, Array]:
    """Return draws of the same model by NUTS."""
    posterior = fitted.truth(progress_bar=False)["posterior"].dataset
    sites = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
    return {str(name): sites[name].values for name in fitted.draws}
