# ruff: noqa: D401 (docstrings say what a case is)
"""Kinds that are left out while checks and thresholds are changed: bad ones."""

from dataclasses import replace

import numpy as np

from benchmarks.verdict_kinds.case import Case, Kinds, with_wrong_divergence, without
from benchmarks.verdict_kinds.problems import (
    Array,
    Problem,
    Rows,
    bernoulli,
    categorical,
    linear,
    normal,
    poisson,
    problem,
    signs,
    spoilt,
    student_t,
    uniform,
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
    wave_problem,
)

KEPT_BAD = Kinds()


# ---------------------------------------------------------------------- training


@KEPT_BAD.add("network", predict="bad", compare="bad")
def hardly_trained_classes(rng: RNG) -> Case:
    """A network for classes with a learning rate of 1e-4."""
    return fitted_to(ring_problem(rng), net="mlp:2-20-2", lr=1e-4, num_steps=1500)


@KEPT_BAD.add("logistic", predict="good", parameters="bad", compare="bad")
def divergence_times_0_02(rng: RNG) -> Case:
    """The divergence of a logistic regression counts 0.02 times."""
    case = fitted_to(logistic_problem(rng), likelihood="bernoulli")
    return with_wrong_divergence(case, 0.02)


@KEPT_BAD.add("linear", predict="good", parameters="bad", compare="bad")
def divergence_times_50_linear(rng: RNG) -> Case:
    """The divergence of a linear regression counts fifty times."""
    return with_wrong_divergence(fitted_to(linear_problem(rng)), 50.0)


@KEPT_BAD.add("linear", predict="good", parameters="bad", compare="bad")
def frozen_scales(rng: RNG) -> Case:
    """Sds start at 1e-5 and the learning rate is too small to move them."""
    return fitted_to(linear_problem(rng), init_scale=1e-5, lr=1e-3, num_steps=3000)


@KEPT_BAD.add("counts", predict="bad", parameters="bad", compare="bad")
def counts_few_steps(rng: RNG) -> Case:
    """Fifteen steps for counts."""
    return fitted_to(poisson_problem(rng), num_steps=15)


@KEPT_BAD.add("pyro", parameters="bad", compare="bad")
def pyro_few_steps(rng: RNG) -> Case:
    """Twenty steps for a model written in Pyro."""
    options = pyro_regression(rng) | {"num_steps": 20}
    return Case(regression_model, options, reference=nuts)


@KEPT_BAD.add("horseshoe", predict="bad")
def horseshoe_untrained(rng: RNG) -> Case:
    """A learning rate of 1e-5 for group_horseshoe."""
    return fitted_to(sparse_problem(rng), "group_horseshoe", lr=1e-5, num_steps=1000)


# ---------------------------------------------------------------------- models


@KEPT_BAD.add("logistic", intervals="bad", parameters="bad")
def separable_with_wide_prior(rng: RNG) -> Case:
    """Forty rows that a plane separates, and a prior with an sd of 1000."""
    while True:
        source = logistic_problem(rng, columns=6, size=0.8, rows=40, test=100)
        if separable(source.train.X, source.train.y):
            break
    return fitted_to(source, likelihood="bernoulli", priors={"*": "Normal(0, 1000)"})


def separable(X: Array, y: Array) -> bool:
    """Tell whether a plane separates two classes."""
    from scipy.optimize import linprog

    sides = (2 * y - 1)[:, None] * np.column_stack([X, np.ones(len(X))])
    free, ones = (None, None), np.ones(len(X))
    found = linprog(np.zeros(sides.shape[1]), A_ub=-sides, b_ub=-ones, bounds=free)
    return bool(found.status == 0)


@KEPT_BAD.add("network", predict="bad")
def network_prior_too_narrow(rng: RNG) -> Case:
    """Normal(0, 0.01) on the weights of a network for classes."""
    priors = {"*.weight": "Normal(0, 0.01)"}
    return fitted_to(ring_problem(rng), net="mlp:2-20-2", priors=priors)


@KEPT_BAD.add("network", intervals="bad")
def network_noise_too_small(rng: RNG) -> Case:
    """Noise of a network fixed at a tenth of its true value."""
    likelihood = "gaussian(noise=0.05)"
    return fitted_to(wave_problem(rng, noise=0.5), net="mlp:2-20-1", likelihood=likelihood)


@KEPT_BAD.add("student_t", predict="good", intervals="bad", parameters="bad")
def heavy_tails_noise_too_large(rng: RNG) -> Case:
    """The scale of a t distribution fixed at eight times its true value."""
    response = student_t(linear(signs(rng, 3), 0.5), 0.5, 4)
    source = problem(rng, normal(3), response, family="student_t", rows=300)
    return fitted_to(source, likelihood="student_t(df=4, noise=4)")


@KEPT_BAD.add("counts", intervals="bad")
def zero_inflated_counts(rng: RNG) -> Case:
    """Half of the counts are zero whatever the inputs."""
    inner = poisson(linear(signs(rng, 3, 0.4), 1.8))

    def response(rng: RNG, X: Array) -> tuple[Array, Array]:
        y, rate = inner(rng, X)
        return y * (rng.uniform(size=len(y)) < 0.5), 0.5 * rate

    return fitted_to(problem(rng, normal(3), response, family="poisson", rows=400))


@KEPT_BAD.add("pyro", parameters="bad")
def pyro_correlated(rng: RNG) -> Case:
    """A regression written in Pyro, inputs correlated by 0.95, independent posteriors."""
    return Case(regression_model, pyro_regression(rng, correlation=0.95), reference=nuts)


# ---------------------------------------------------------------------- data


@KEPT_BAD.add("network", predict="bad")
def nothing_to_learn(rng: RNG) -> Case:
    """A network for noise."""
    source = wave_problem(rng, rows=200)
    noise = [
        Rows(rows.X, rng.normal(size=len(rows.y)), np.zeros(len(rows.y)))
        for rows in (source.train, source.test, source.fresh)
    ]
    return fitted_to(Problem("other", *noise), net="mlp:2-20-1")


@KEPT_BAD.add("classes", predict="bad")
def three_shuffled_classes(rng: RNG) -> Case:
    """Three classes that have nothing to do with the inputs."""
    response = categorical(lambda X: np.tile([0.0, 0.3, 0.6], (len(X), 1)))
    source = problem(rng, normal(4), response, family="categorical", rows=300)
    return fitted_to(source)


@KEPT_BAD.add("classes", predict="bad", intervals="bad")
def duplicated_classes(rng: RNG) -> Case:
    """Rows of two classes four times, also across the split, and a large network."""
    response = bernoulli(lambda X: 1.5 * X[:, 0] * X[:, 1])
    source = problem(rng, normal(8), response, family="bernoulli", rows=50)
    rows = np.concatenate([rng.permutation(50) for _ in range(4)])
    both = [
        Rows(source.train.X[part], source.train.y[part], source.train.expected[part])
        for part in (rows[50:], rows[:50])
    ]
    return fitted_to(Problem("categorical", *both, source.fresh), net="mlp:8-50-2")


@KEPT_BAD.add("classes", predict="bad", intervals="bad")
def shifted_classes(rng: RNG) -> Case:
    """Classes in stripes, test inputs from beyond the training rows."""
    source = problem(
        rng,
        uniform(2, -2.0, 2.0),
        bernoulli(lambda X: 4 * np.sin(1.5 * X[:, 0])),
        family="bernoulli",
        rows=400,
        test_inputs=uniform(2, 3.0, 5.0),
    )
    return fitted_to(replace(source, family="categorical"), net="mlp:2-20-2")


@KEPT_BAD.add("counts", predict="bad", intervals="bad", parameters="bad")
def count_outliers(rng: RNG) -> Case:
    """Three counts with a zero too many."""
    source = poisson_problem(rng)
    X, y = source.train.X.copy(), source.train.y.copy()
    X[:3], y[:3] = 2.5, [400, 500, 600]
    return fitted_to(spoilt(source, X=X, y=y))


@KEPT_BAD.add("logistic", parameters="bad")
def raw_inputs_logistic(rng: RNG) -> Case:
    """Two classes, inputs around a thousand."""
    weights = signs(rng, 3, 0.02)
    response = bernoulli(lambda X: (X - 1000.0) @ weights)
    source = problem(rng, normal(3, loc=1000.0, scale=100.0), response, family="bernoulli")
    return fitted_to(source, likelihood="bernoulli")


@KEPT_BAD.add("logistic", parameters="unknown", compare="unknown")
def tree_without_densities(rng: RNG) -> Case:
    """A good fit whose stored tree lost the densities of its draws."""
    case = fitted_to(logistic_problem(rng), likelihood="bernoulli")
    return replace(case, alter=without("sample_stats"))


@KEPT_BAD.add("network", predict="unknown", intervals="unknown")
def tree_without_history(rng: RNG) -> Case:
    """A good network whose stored tree lost the history of training and the test rows."""
    case = fitted_to(wave_problem(rng), net="mlp:2-20-1")
    return replace(case, alter=without("optimization", "held_out", "references"))
