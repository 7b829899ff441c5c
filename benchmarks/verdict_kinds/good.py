# ruff: noqa: D401 (docstrings say what a case is)
"""Fits that are good by design, at default settings."""

import numpy as np
import pandas as pd

from benchmarks.verdict_kinds.case import Case, Kinds
from benchmarks.verdict_kinds.problems import (
    Array,
    categorical,
    gaussian,
    heteroscedastic,
    linear,
    normal,
    problem,
    signs,
    student_t,
)
from benchmarks.verdict_kinds.shared import (
    RNG,
    fitted_to,
    linear_problem,
    logistic_problem,
    nuts,
    poisson_problem,
    pyro_regression,
    regression_model,
    ring_problem,
    sparse_problem,
    table_problem,
    wave_problem,
)

GOOD = Kinds()


@GOOD.add("linear", predict="good", intervals="good", parameters="good", compare="good")
def linear_regression(rng: RNG) -> Case:
    """Three independent inputs, weights of size one."""
    return fitted_to(linear_problem(rng))


@GOOD.add("linear", predict="good", intervals="good", parameters="good", compare="good")
def linear_many_rows(rng: RNG) -> Case:
    """Five independent inputs and 3000 rows, in mini-batches."""
    return fitted_to(linear_problem(rng, columns=5, noise=1.0, rows=3000, test=500))


@GOOD.add("linear", predict="good", intervals="good", parameters="good", compare="good")
def correlated_inputs_full_rank(rng: RNG) -> Case:
    """Inputs correlated by 0.9, and a guide with all correlations."""
    return fitted_to(linear_problem(rng, correlation=0.9), guide="full_rank")


@GOOD.add("logistic", predict="good", intervals="good", parameters="good", compare="good")
def logistic_regression(rng: RNG) -> Case:
    """Two classes, four independent inputs."""
    return fitted_to(logistic_problem(rng), likelihood="bernoulli")


@GOOD.add("classes", overall=False, predict="good", intervals="good")
def three_classes(rng: RNG) -> Case:
    """Three classes that are linear in three inputs."""
    weights = rng.normal(size=(3, 3))
    weights *= 2 / np.linalg.norm(weights - weights.mean(1, keepdims=True))
    response = categorical(lambda X: 2 * X @ weights)
    source = problem(rng, normal(3), response, family="categorical", rows=450, test=200)
    return fitted_to(source)


@GOOD.add("heteroscedastic", predict="good", intervals="good")
def noise_that_grows(rng: RNG) -> Case:
    """A linear model of the mean and of the noise."""
    mean, scale = linear(signs(rng, 2), 0.5), linear(np.array([0.25, 0.0]), -0.5)
    response = heteroscedastic(mean, lambda X: np.log1p(np.exp(scale(X))))
    source = problem(rng, normal(2), response, family="heteroscedastic", rows=400)
    return fitted_to(source, likelihood="gaussian(noise=heteroscedastic)")


@GOOD.add("counts", predict="good", intervals="good", parameters="good", compare="good")
def counts(rng: RNG) -> Case:
    """Counts with a mean near three."""
    return fitted_to(poisson_problem(rng))


@GOOD.add("student_t", predict="good", intervals="good", parameters="good", compare="good")
def heavy_tails(rng: RNG) -> Case:
    """Noise from a t distribution, and its likelihood."""
    response = student_t(linear(signs(rng, 3), 0.5), 0.5, 4)
    source = problem(rng, normal(3), response, family="student_t", rows=300)
    return fitted_to(source, likelihood="student_t(df=4)")


@GOOD.add("network", predict="good", intervals="good")
def network_regression(rng: RNG) -> Case:
    """A smooth function of two inputs, twenty hidden units."""
    return fitted_to(wave_problem(rng), net="mlp:2-20-1")


@GOOD.add("network", predict="good", intervals="good")
def network_classes(rng: RNG) -> Case:
    """One class around the other, twenty hidden units."""
    return fitted_to(ring_problem(rng), net="mlp:2-20-2")


@GOOD.add("table", predict="good", intervals="good", parameters="good", compare="good")
def table_of_numbers(rng: RNG) -> Case:
    """A CSV file with three columns on scales of their own."""
    source = problem(rng, measurements, gaussian(yields, 3.0), rows=300, test=75)
    return Case("mean_field", {"net": "linear"}, source, table=True)


def measurements(rng: RNG, number: int) -> pd.DataFrame:
    """Return a table of numbers."""
    columns = {"rain": (600.0, 150.0), "heat": (18.0, 4.0), "acid": (6.5, 0.4)}
    return pd.DataFrame({name: rng.normal(*pair, size=number) for name, pair in columns.items()})


def yields(X: pd.DataFrame) -> Array:
    """Return the expected harvest of a row."""
    parts = (X["rain"] - 600) / 50 - 0.8 * (X["heat"] - 18) + 9 * (X["acid"] - 6.5)
    return np.asarray(40 + parts)


@GOOD.add("table", overall=False, predict="good", intervals="good")
def table_laplace(rng: RNG) -> Case:
    """A CSV file with a column of text; its weights follow the prior in one direction."""
    return Case("laplace", {"net": "linear"}, table_problem(rng), table=True)


@GOOD.add("laplace", predict="good", intervals="good", parameters="good")
def laplace_logistic(rng: RNG) -> Case:
    """Two classes by the method laplace."""
    return fitted_to(logistic_problem(rng), "laplace", likelihood="bernoulli")


@GOOD.add("horseshoe", overall=False, predict="good", intervals="good", compress="good")
def horseshoe_sparse(rng: RNG) -> Case:
    """Four of twenty inputs matter; group_horseshoe."""
    return fitted_to(sparse_problem(rng), "group_horseshoe")


@GOOD.add("sparse_vd", overall=False, predict="good", intervals="good", compress="good")
def sparse_vd_sparse(rng: RNG) -> Case:
    """Four of twenty inputs matter; sparse_vd."""
    return fitted_to(sparse_problem(rng), "sparse_vd")


@GOOD.add("horseshoe", predict="good", intervals="good", compress="good")
def horseshoe_network(rng: RNG) -> Case:
    """Four of twenty inputs matter; a network by group_horseshoe."""
    return fitted_to(sparse_problem(rng), "group_horseshoe", net="mlp:20-10-1")


@GOOD.add("pyro", parameters="good", compare="good")
def pyro_independent(rng: RNG) -> Case:
    """A linear regression written in Pyro, independent inputs."""
    return Case(regression_model, pyro_regression(rng), reference=nuts)
