# ruff: noqa: D401 (docstrings say what a case is)
"""Data that no default fit can be trusted on, and trees that lost a part."""

from dataclasses import replace

import numpy as np

from benchmarks.verdict_kinds.case import Case, Kinds, without
from benchmarks.verdict_kinds.problems import (
    Problem,
    Rows,
    gaussian,
    linear,
    normal,
    problem,
    signs,
    spoilt,
)
from benchmarks.verdict_kinds.shared import (
    RNG,
    fitted_to,
    linear_problem,
    logistic_problem,
    wave,
)

BAD_DATA = Kinds()


@BAD_DATA.add("network", predict="bad", intervals="bad")
def duplicated_rows(rng: RNG) -> Case:
    """Every row four times, also across the split: a network that memorises looks perfect."""
    response = gaussian(lambda X: np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2], 0.5)
    source = problem(rng, normal(8), response, family="other", rows=60)
    rows = np.concatenate([rng.permutation(60) for _ in range(4)])
    X, y, expected = (
        part[rows] for part in (source.train.X, source.train.y, source.train.expected)
    )
    parts = [Rows(X[s], y[s], expected[s]) for s in (slice(60, 240), slice(0, 60))]
    return fitted_to(Problem("other", *parts, source.fresh), net="mlp:8-50-1")


def hills(X: np.ndarray) -> np.ndarray:
    """Return a function that stays between -2 and 2."""
    return np.asarray(np.sin(1.5 * X[:, 0]) + np.cos(1.5 * X[:, 1]))


@BAD_DATA.add("network", predict="bad", intervals="bad")
def shifted_test_inputs(rng: RNG) -> Case:
    """Test inputs from where there is no training row."""
    far = normal(2, loc=4.0, scale=0.5)
    source = problem(
        rng, normal(2), gaussian(hills, 0.2), family="other", rows=400, test_inputs=far
    )
    return fitted_to(source, net="mlp:2-20-1")


@BAD_DATA.add("linear", predict="bad", parameters="bad")
def outliers(rng: RNG) -> Case:
    """Three rows far away determine the fit."""
    source = linear_problem(rng, rows=100)
    X, y = source.train.X.copy(), source.train.y.copy()
    X[:3], y[:3] = 8.0, [90.0, 100.0, 110.0]
    return fitted_to(spoilt(source, X=X, y=y))


@BAD_DATA.add("linear", predict="bad")
def eight_rows(rng: RNG) -> Case:
    """Eight rows for six inputs."""
    source = problem(rng, normal(6), gaussian(linear(signs(rng, 6, 0.4), 0.5), 2.0), rows=8, test=4)
    return fitted_to(source)


@BAD_DATA.add("network", predict="bad")
def raw_inputs(rng: RNG) -> Case:
    """Inputs in the hundreds, without scaling."""

    def mean(X: np.ndarray) -> np.ndarray:
        return wave((X - 500.0) / 100.0)

    source = problem(rng, normal(2, loc=500.0, scale=100.0), gaussian(mean, 0.2), family="other")
    return fitted_to(source, net="mlp:2-20-1")


@BAD_DATA.add("linear", predict="bad", parameters="bad")
def raw_targets(rng: RNG) -> Case:
    """Targets in the ten thousands, without scaling."""
    response = gaussian(linear(signs(rng, 3, 1e4), 5e3), 5e3)
    return fitted_to(replace(problem(rng, normal(3), response), prior_scale=1e4))


@BAD_DATA.add("logistic", predict="bad")
def shuffled_labels(rng: RNG) -> Case:
    """Labels that have nothing to do with the inputs."""
    return fitted_to(logistic_problem(rng, size=0.0), likelihood="bernoulli")


@BAD_DATA.add(
    "linear", predict="unknown", intervals="unknown", parameters="unknown", compare="unknown"
)
def tree_without_data(rng: RNG) -> Case:
    """A good fit whose stored tree lost data, test rows and likelihoods."""
    case = fitted_to(linear_problem(rng))
    return replace(case, alter=without("observed_data", "held_out", "references", "log_likelihood"))


@BAD_DATA.add("linear", predict="unknown", intervals="unknown")
def tree_without_test_rows(rng: RNG) -> Case:
    """A good fit whose stored tree lost its test rows."""
    case = fitted_to(linear_problem(rng))
    return replace(case, alter=without("held_out", "references", "posterior_predictive"))
