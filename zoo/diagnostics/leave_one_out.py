"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, without refitting.

Importance weights remove the influence of a row on the draws that predict it.
"""

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy.special import logsumexp

from zoo.diagnostics.approximation import pareto_khat, weights_tell
from zoo.diagnostics.finding import Finding, format_number, format_share, level_of
from zoo.diagnostics.reading import (
    SEED,
    Array,
    draws,
    log_weights,
    replications,
    task_of,
    thinned,
    variable,
)
from zoo.diagnostics.uniformity import pit_finding, uniformity
from zoo.infer.psis import MIN_DRAWS, smoothed_log_weights, usable_khat

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
    rows = thinned(np.arange(log_likelihood.shape[1]), MAX_ROWS)
    finite = np.isfinite(log_likelihood[:, rows]).all(0)
    rows = rows[finite]
    if len(log_likelihood) < MIN_DRAWS or not len(rows):
        return []
    correction = _posterior_correction(tree, len(log_likelihood))
    elpd, khat, weights = leave_one_out(log_likelihood[:, rows], correction)
    how = "not corrected for the guide" if correction is None else "corrected for the guide"
    findings = [
        _elpd_finding(elpd, how),
        _khat_finding(khat, usable_khat(len(log_likelihood)), judged=weights_tell(tree)),
    ]
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
    `log_likelihood` has the shape ``(draws, rows)``; `correction` is c.
    """
    ratios = -log_likelihood if correction is None else correction[:, None] - log_likelihood
    smoothed = [smoothed_log_weights(column) for column in ratios.T]
    weights = np.stack([column for column, _ in smoothed], axis=1)
    elpd = np.asarray(logsumexp(weights + log_likelihood, axis=0), np.float64)
    return elpd, np.array([khat for _, khat in smoothed]), np.exp(weights)


def _posterior_correction(tree: xarray.DataTree, count: int) -> Array | None:
    weights = log_weights(tree)
    if weights is None or len(weights) != count or not np.isfinite(weights).all():
        return None
    return weights if pareto_khat(weights) <= usable_khat(count) else None


def _elpd_finding(elpd: Array, how: str) -> Finding:
    mean, error = float(elpd.mean()), float(elpd.std() / np.sqrt(len(elpd)))
    message = (
        f"The leave-one-out log predictive density ({how}) is {format_number(mean)} ± "
        f"{format_number(error)} nats per row over {len(elpd)} rows."
    )
    return Finding("predictive.loo", "info", mean, None, message, source=SOURCE)


def _khat_finding(khat: Array, threshold: float, *, judged: bool) -> Finding:
    share = float((khat > threshold).mean())
    message = (
        f"{format_share(share)} of the rows have a Pareto k above {format_number(threshold)}; the "
        f"largest is {format_number(float(khat.max()))}."
    )
    level = level_of(share, MAX_BAD_K, judged=judged)
    advice = "Compare models on held-out rows, not by leave-one-out."
    return Finding("predictive.loo_pareto_k", level, share, MAX_BAD_K, message, advice, SOURCE)


def _loo_pit(tree: xarray.DataTree, rows: NDArray[np.int_], weights: Array) -> list[Finding]:
    pair = replications(tree, "posterior_predictive")
    if pair is None or len(pair[0]) != len(weights) or len(pair[1]) <= rows.max():
        return []
    replicated, y = pair[0][:, rows], pair[1][rows]
    usable = np.isfinite(y) & np.isfinite(replicated).all(0)
    if not usable.any():
        return []
    values = loo_pit(replicated[:, usable], y[usable], weights[:, usable])
    return [pit_finding("predictive.loo_pit", "Leave-one-out PIT values", uniformity(values))]


def loo_pit(samples: Array, y: Array, weights: Array) -> Array:
    """Return the weighted fraction of draws below each observation; ties are broken at random."""
    noise = np.random.default_rng(SEED).uniform(size=len(y))
    below = (weights * (samples < y)).sum(0)
    ties = (weights * (samples == y)).sum(0)
    return np.asarray(np.clip(below + noise * ties, 0, 1), np.float64)
