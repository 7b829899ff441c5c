# ruff: noqa: D401 (docstrings say what a case is)
"""Kinds that are left out while checks and thresholds are changed: good ones."""

from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.verdict_kinds.case import Case, Kinds
from benchmarks.verdict_kinds.kept_bad import KEPT_BAD
from benchmarks.verdict_kinds.problems import (
    Array,
    bernoulli,
    gaussian,
    heteroscedastic,
    linear,
    normal,
    poisson,
    problem,
    signs,
    uniform,
)
from benchmarks.verdict_kinds.shared import RNG, fitted_to, linear_problem, nuts

KEPT = Kinds()


def patients(rng: RNG, number: int) -> pd.DataFrame:
    """Return a table with numbers, and one column of yes and no."""
    return pd.DataFrame(
        {
            "pressure": rng.normal(130.0, 15.0, size=number),
            "weight": rng.normal(75.0, 12.0, size=number),
            "smoker": rng.choice(["no", "yes"], size=number),
        }
    )


def risk(X: pd.DataFrame) -> Array:
    """Return log odds."""
    smoker = (X["smoker"] == "yes").to_numpy(dtype=float)
    return np.asarray((X["pressure"] - 130) / 12 - (X["weight"] - 75) / 15 + 2 * smoker - 1)


@KEPT.add("table", overall=False, predict="good", intervals="good")
def table_classes(rng: RNG) -> Case:
    """Two classes from a CSV file, by the defaults of a linear model."""
    source = problem(rng, patients, bernoulli(risk), family="bernoulli", rows=480)
    return Case("mean_field", {"net": "linear"}, source, table=True)


def terms(rng: RNG, number: int) -> pd.DataFrame:
    """Return a table of four numbers."""
    return pd.DataFrame(uniform(4)(rng, number), columns=["a", "b", "c", "d"])


def surface(X: pd.DataFrame) -> Array:
    """Return a function with an interaction."""
    return np.asarray(10 * np.sin(X["a"]) + 4 * X["b"] * X["c"] + 3 * X["d"])


@KEPT.add("network", predict="good", intervals="good")
def table_default_network(rng: RNG) -> Case:
    """A regression from a CSV file by the default network."""
    source = problem(rng, terms, gaussian(surface, 2.0), family="other", rows=800, test=200)
    return Case("mean_field", {}, source, table=True)


@KEPT.add("heteroscedastic", predict="good", intervals="good")
def network_with_noise_that_grows(rng: RNG) -> Case:
    """A network for the mean and the noise of a wave."""
    response = heteroscedastic(lambda X: np.sin(2 * X[:, 0]), lambda X: 0.2 + 0.1 * (X[:, 0] + 2))
    source = problem(rng, uniform(1), response, family="other", rows=500)
    return fitted_to(source, net="mlp:1-20-2", likelihood="gaussian(noise=heteroscedastic)")


@KEPT.add("counts", predict="good", intervals="good")
def network_counts(rng: RNG) -> Case:
    """A network for the rate of counts."""
    response = poisson(lambda X: 1.5 + np.sin(1.5 * X[:, 0]) - 0.4 * np.abs(X[:, 1]))
    source = problem(rng, uniform(2), response, family="poisson", rows=400)
    return fitted_to(source, net="mlp:2-20-1")


@KEPT.add("horseshoe", overall=False, predict="good", intervals="good", compress="good")
def horseshoe_classes(rng: RNG) -> Case:
    """Three of fifteen inputs matter for two classes; group_horseshoe."""
    active = (2, 7, 11)
    weights = np.zeros(15)
    weights[list(active)] = signs(rng, 3, 2.0)
    source = problem(
        rng,
        normal(15),
        bernoulli(linear(weights)),
        family="bernoulli",
        rows=500,
        test=200,
        active=active,
    )
    return fitted_to(source, "group_horseshoe", likelihood="bernoulli")


def counts_model(X: Tensor, y: Tensor) -> None:
    """Poisson regression."""
    w = pyro.sample("w", dist.Normal(torch.zeros(X.shape[1]), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Poisson((X @ w + b).exp()), obs=y)


@KEPT.add("pyro", parameters="good", compare="good")
def pyro_counts_full_rank(rng: RNG) -> Case:
    """Counts written in Pyro, correlated inputs, a guide with all correlations."""
    rows = problem(
        rng, normal(3, correlation=0.8), poisson(linear(signs(rng, 3, 0.4), 1.0)), family="poisson"
    ).train
    args: Any = torch.tensor(rows.X).float(), torch.tensor(rows.y).float()
    return Case(counts_model, {"args": args, "guide": "full_rank"}, reference=nuts)


@KEPT.add("linear", predict="good", intervals="good", parameters="good", compare="good")
def ten_inputs(rng: RNG) -> Case:
    """Ten independent inputs, 600 rows, noise above the signal of one input."""
    return fitted_to(linear_problem(rng, columns=10, noise=1.5, rows=600, test=150))


for kind in KEPT_BAD.values():
    KEPT[kind.name] = kind
