"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, without refitting.

Importance weights remove the influence of a row on the draws that predict it.
"""

from dataclasses import dataclass

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy import stats

from zoo.diagnostics.approximation import pareto_khat, weights_tell
from zoo.diagnostics.finding import Finding, format_number, format_share, level_of
from zoo.diagnostics.reading import (
    Array,
    draws,
    log_weights,
    replications,
    task_of,
    thinned,
    variable,
)
from zoo.diagnostics.uniformity import pit_finding, uniformity
from zoo.infer.psis import MIN_DRAWS, leave_one_out, loo_pit, usable_khat

SOURCE = "Magnusson et al. (2019); Vehtari, Gelman and Gabry (2017)"

#: Largest number of rows; more are thinned evenly.
MAX_ROWS = 1000
#: Largest fraction of rows with a k-hat above the threshold, and the fraction above which the
#: sum is no longer reported as a number.
MAX_BAD_K, MAX_UNRELIABLE = 0.01, 0.05


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out results of some rows.

    ``pit`` are probability integral transforms, or None. ``corrected`` tells whether draws of a
    guide were weighted by the posterior.
    """

    elpd: Array
    pareto_k: Array
    pit: Array | None
    num_draws: int
    corrected: bool


def loo_findings(tree: xarray.DataTree) -> list[Finding]:
    r"""Estimate the log density of unseen rows by leave-one-out, with the Pareto k of every row.

    Draws of the guide are also weighted by :math:`p(y, \theta) / q(\theta)` (Magnusson et al.
    2019). If the k-hat of these weights is too large, the guide is used in place of the posterior,
    and the message says so.
    """
    found = _stored(tree) or _computed(tree)
    if found is None:
        return []
    bad = found.pareto_k > usable_khat(found.num_draws)
    findings = [
        _elpd_finding(found, share=float(bad.mean())),
        _khat_finding(found, judged=weights_tell(tree)),
    ]
    if found.pit is not None:
        result = uniformity(found.pit)
        findings.append(pit_finding("predictive.loo_pit", "Leave-one-out PIT values", result))
    return findings


def _stored(tree: xarray.DataTree) -> LeaveOneOut | None:
    """Return the results that were computed with the fit, from more draws than are stored."""
    arrays = [variable(tree, "leave_one_out", name) for name in ("elpd", "pareto_k", "pit")]
    elpd, khat, pit = (None if a is None else a.to_numpy().astype(np.float64) for a in arrays)
    if elpd is None or khat is None:
        return None
    attributes = tree["leave_one_out"].attrs
    draws_, corrected = int(attributes["draws"]), bool(attributes["corrected"])
    return LeaveOneOut(elpd, khat, pit, draws_, corrected)


def _computed(tree: xarray.DataTree) -> LeaveOneOut | None:
    """Return the results of the draws in the tree."""
    array = variable(tree, "log_likelihood", "y")
    if array is None:
        return None
    log_likelihood = draws(array)
    rows = thinned(np.arange(log_likelihood.shape[1]), MAX_ROWS)
    finite = np.isfinite(log_likelihood[:, rows]).all(0)
    rows = rows[finite]
    if len(log_likelihood) < MIN_DRAWS or not len(rows):
        return None
    correction = _posterior_correction(tree, len(log_likelihood))
    elpd, khat, weights = leave_one_out(log_likelihood[:, rows], correction)
    pit = None if task_of(tree) == "classification" else _loo_pit(tree, rows, weights)
    return LeaveOneOut(elpd, khat, pit, len(log_likelihood), correction is not None)


def _posterior_correction(tree: xarray.DataTree, count: int) -> Array | None:
    weights = log_weights(tree)
    if weights is None or len(weights) != count or not np.isfinite(weights).all():
        return None
    return weights if pareto_khat(weights) <= usable_khat(count) else None


def _elpd_finding(found: LeaveOneOut, share: float) -> Finding:
    """Report the NLL of left-out rows, but no number that is not reliable."""
    how = "corrected for the guide" if found.corrected else "not corrected for the guide"
    if share > MAX_UNRELIABLE:
        message = (
            f"The leave-one-out NLL ({how}) is not reported: {format_share(share)} of the rows "
            "have a Pareto k for which it is not reliable."
        )
        return Finding("predictive.loo", "info", None, None, message, source=SOURCE)
    elpd = found.elpd
    mean, error = -float(elpd.mean()), float(elpd.std() / np.sqrt(len(elpd)))
    message = (
        f"The leave-one-out NLL ({how}) is {format_number(mean)} ± {format_number(error)} nats per "
        f"row over {len(elpd)} rows; it estimates the NLL of test rows."
    )
    return Finding("predictive.loo", "info", mean, None, message, source=SOURCE)


def _khat_finding(found: LeaveOneOut, *, judged: bool) -> Finding:
    threshold, count = usable_khat(found.num_draws), len(found.pareto_k)
    bad = int((found.pareto_k > threshold).sum())
    share = bad / count
    # The share of rows is crossed only beyond its binomial error.
    low = float(stats.beta.ppf(0.025, bad, count - bad + 1)) if bad else 0.0
    message = (
        f"{format_share(share)} of {count} rows have a Pareto k above {format_number(threshold)} "
        f"({found.num_draws} draws); the largest is {format_number(float(found.pareto_k.max()))}."
    )
    level = level_of(low, MAX_BAD_K, judged=judged)
    advice = "Compare models on held-out rows, not by leave-one-out."
    return Finding("predictive.loo_pareto_k", level, share, MAX_BAD_K, message, advice, SOURCE)


def _loo_pit(tree: xarray.DataTree, rows: NDArray[np.int_], weights: Array) -> Array | None:
    pair = replications(tree, "posterior_predictive")
    if pair is None or len(pair[0]) != len(weights) or len(pair[1]) <= rows.max():
        return None
    replicated, y = pair[0][:, rows], pair[1][rows]
    usable = np.isfinite(y) & np.isfinite(replicated).all(0)
    return loo_pit(replicated[:, usable], y[usable], weights[:, usable]) if usable.any() else None
