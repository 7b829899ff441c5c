"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, without refitting.

Importance weights remove the influence of a row on the draws that predict it.
"""

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy.special import logsumexp

from zoo.diagnostics.approximation import (
    MIN_DRAWS,
    pareto_khat,
    smoothed_log_weights,
    usable_khat,
    weights_tell,
)
from zoo.diagnostics.finding import Finding, Level, format_number, format_share
from zoo.diagnostics.reading import SEED, Array, draws, scalar_draws, task_of, variable
from zoo.diagnostics.uniformity import pit_finding, uniformity

SOURCE = "Magnusson et al. (2019); Vehtari, Gelman and Gabry (2017)"

#: Largest number of rows; more are thinned evenly.
MAX_ROWS = 1000
#: Largest fraction of rows with a k-hat above the threshold.
MAX_BAD_K = 0.01


def loo_findings(tree: xarray.DataTree) -> list[Finding]:
    r"""Estimate the log density of unseen rows by leave-one-out, with the Pareto k of every row.

    Draws of the guide are also weighted by :math:`p(y, \theta) / q(\theta)` (Magnusson et al.
    2019). If the k-hat of these weights is too large, the guide is used in place of the posterior,
    and the message says so.
    """
    array = variable(tree, "log_likelihood", "y")
    if array is None:
        return []
    log_likelihood = draws(array)
    rows = _thinned_rows(log_likelihood.shape[1])
    finite = np.isfinite(log_likelihood[:, rows]).all(0)
    rows = rows[finite]
    if len(log_likelihood) < MIN_DRAWS or not len(rows):
        return []
    correction = _posterior_correction(tree, len(log_likelihood))
    elpd, khat, weights = leave_one_out(log_likelihood[:, rows], correction)
    findings = _loo_summary(
        elpd,
        khat,
        len(log_likelihood),
        corrected=correction is not None,
        judged=weights_tell(tree),
    )
    if task_of(tree) != "classification":
        findings += _loo_pit(tree, rows, weights)
    return findings


def leave_one_out(
    log_likelihood: Array, correction: Array | None = None
) -> tuple[Array, Array, Array]:
    r"""Return elpd, Pareto k and smoothed weights of every row.

    Weights are :math:`\propto e^{c_s} / p(y_i \mid \theta_s)`, Pareto smoothed. The results equal
    those of ArviZ's ``loo`` and ``loo_approximate_posterior``, which raise an error for a row with
    the same likelihood in all draws. A network that is certain of a class has many such rows.

    Parameters
    ----------
    log_likelihood
        Shape ``(draws, rows)``.
    correction
        Log importance weights of the draws, c above.
    """
    ratios = -log_likelihood if correction is None else correction[:, None] - log_likelihood
    smoothed = [smoothed_log_weights(column) for column in ratios.T]
    weights = np.stack([column for column, _ in smoothed], axis=1)
    elpd = np.asarray(logsumexp(weights + log_likelihood, axis=0), np.float64)
    return elpd, np.array([khat for _, khat in smoothed]), np.exp(weights)


def _thinned_rows(count: int) -> NDArray[np.int_]:
    if count <= MAX_ROWS:
        return np.arange(count)
    return np.linspace(0, count - 1, MAX_ROWS).round().astype(int)


def _posterior_correction(tree: xarray.DataTree, count: int) -> Array | None:
    log_joint = scalar_draws(tree, "sample_stats", "lp")
    log_guide = scalar_draws(tree, "sample_stats", "log_q")
    if log_joint is None or log_guide is None or not len(log_joint) == len(log_guide) == count:
        return None
    with np.errstate(invalid="ignore"):
        weights = log_joint - log_guide
    if not np.isfinite(weights).all() or not pareto_khat(weights) <= usable_khat(count):
        return None
    return weights


def _loo_summary(
    elpd: Array, khat: Array, num_draws: int, *, corrected: bool, judged: bool
) -> list[Finding]:
    threshold = usable_khat(num_draws)
    share = float((khat > threshold).mean())
    error = float(elpd.std() / np.sqrt(len(elpd)))
    how = "corrected for the guide" if corrected else "not corrected for the guide"
    score = Finding(
        "predictive.loo",
        "info",
        float(elpd.mean()),
        None,
        f"The leave-one-out log predictive density ({how}) is {format_number(float(elpd.mean()))} "
        f"± {format_number(error)} nats per row over {len(elpd)} rows.",
        "",
        SOURCE,
    )
    bad = share > MAX_BAD_K
    # As for k-hat, weights are not informative if there are many unknowns.
    poor: Level = "warn" if judged else "info"
    pareto = Finding(
        "predictive.loo_pareto_k",
        poor if bad else "ok",
        share,
        MAX_BAD_K,
        f"{format_share(share)} of the rows have a Pareto k above {format_number(threshold)}; the "
        f"largest is {format_number(float(khat.max()))}.",
        "Compare models on held-out rows, not by leave-one-out." if bad else "",
        SOURCE,
    )
    return [score, pareto]


def _loo_pit(tree: xarray.DataTree, rows: NDArray[np.int_], weights: Array) -> list[Finding]:
    predictive, observed = (
        variable(tree, "posterior_predictive", "y"),
        variable(tree, "observed_data", "y"),
    )
    if predictive is None or observed is None:
        return []
    replicated, y = draws(predictive), observed.to_numpy().astype(np.float64).ravel()
    if len(replicated) != len(weights) or len(y) <= rows.max() or replicated.shape[1] != len(y):
        return []
    usable = np.isfinite(y[rows]) & np.isfinite(replicated[:, rows]).all(0)
    if not usable.any():
        return []
    values = loo_pit(replicated[:, rows][:, usable], y[rows][usable], weights[:, usable])
    return [pit_finding("predictive.loo_pit", "Leave-one-out PIT values", uniformity(values))]


def loo_pit(samples: Array, y: Array, weights: Array) -> Array:
    """Return the weighted fraction of draws below each observation; ties are broken at random."""
    noise = np.random.default_rng(SEED).uniform(size=len(y))
    below = (weights * (samples < y)).sum(0)
    ties = (weights * (samples == y)).sum(0)
    return np.asarray(np.clip(below + noise * ties, 0, 1), np.float64)
