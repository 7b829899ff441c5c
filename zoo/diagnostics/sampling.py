"""Convergence and efficiency of the Markov chains of a truth.

Checked are the network outputs at fixed inputs, the log joint, and the parameters listed in the
root attribute ``identified``. Weights are not checked: chains in different permutations of the same
network give the same predictions.
"""

from functools import partial

import arviz_stats
import numpy as np
import xarray
from arviz_stats.base import array_stats

from zoo.diagnostics.finding import Finding, Level, format_number, format_share, level_of
from zoo.diagnostics.reading import Array, chains, identified, labels, variable, varies

RHAT_SOURCE = "Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021)"
BFMI = partial(Finding, "sampling.bfmi", source="Betancourt (2016)")
DIVERGENCES = partial(Finding, "sampling.divergences", source="Betancourt (2017)")
TREE_DEPTH = partial(Finding, "sampling.tree_depth", source="Hoffman and Gelman (2014)")

#: Largest R-hat of converged chains.
MAX_RHAT = 1.01
#: Smallest effective sample size, in the bulk and in the tails.
MIN_ESS = 400
#: Largest Monte Carlo error of a mean, in posterior sds; corresponds to `MIN_ESS`.
MAX_MCSE = 0.05
#: Smallest energy Bayesian fraction of missing information.
MIN_BFMI = 0.3
#: Largest fraction of trajectories that reach the maximum tree depth.
MAX_SATURATED = 0.01
#: Smallest number of draws per chain.
MIN_DRAWS = 4
#: Default of nutpie and Stan, used if the root attribute ``max_tree_depth`` is missing.
DEFAULT_TREE_DEPTH = 10


def mcse_sd(posterior: xarray.Dataset) -> xarray.Dataset:
    r"""Return the Monte Carlo standard error of the sd of every element.

    With :math:`v = (x - \bar x)^2` it is :math:`\mathrm{sd}(v) / (2\,\mathrm{sd}(x) \sqrt S)`,
    and :math:`S` is the effective sample size of :math:`v`. Errors that use the size of :math:`x`
    itself are too small for draws that alternate around the mean, as those of NUTS do.
    """
    dims = ("chain", "draw")
    squares = (posterior - posterior.mean(dims)) ** 2
    size = arviz_stats.ess(posterior, method="sd")
    error: xarray.Dataset = squares.std(dims) / (2 * np.sqrt(squares.mean(dims) * size))
    return error


def sampling_findings(truth: xarray.DataTree, names: list[str] | None = None) -> list[Finding]:
    """Check the chains of a truth. An exact truth (root attribute ``kind``) has no chains.

    `names` are the identified parameters; by default those listed in the truth.
    """
    if truth.attrs.get("kind") == "exact":
        return []
    columns, values = _quantities(truth, identified(truth) if names is None else names)
    findings = []
    if columns and values.shape[1] >= MIN_DRAWS:
        findings += _chain_findings(values, columns)
    return [
        *findings,
        *_energy_findings(truth),
        *_divergence_findings(truth),
        *_depth_findings(truth),
    ]


def _quantities(truth: xarray.DataTree, names: list[str]) -> tuple[list[str], Array]:
    """Return names and draws ``(chain, draw, column)`` of all columns that vary."""
    places = [("functions", "f"), ("sample_stats", "lp")] + [("posterior", name) for name in names]
    found = [variable(truth, group, name) for group, name in places]
    arrays = [array for array in found if array is not None]
    if not arrays:
        return [], np.empty((0, 0, 0))
    values = np.concatenate([chains(array) for array in arrays], -1)
    columns = [label for array in arrays for label in labels(array)]
    keep = varies(values.reshape(-1, values.shape[-1]))
    return [c for c, kept in zip(columns, keep, strict=True) if kept], values[..., keep]


def _chain_findings(values: Array, columns: list[str]) -> list[Finding]:
    stuck = (np.ptp(values, axis=1) == 0).any(0)
    with np.errstate(all="ignore"):
        rhat = np.where(stuck, np.inf, array_stats.rhat(values, 0, 1, method="rank"))
    bulk = array_stats.ess(values, 0, 1, method="bulk")
    tail = array_stats.ess(values, 0, 1, method="tail", prob=(0.05, 0.95))
    sds = np.array([values[..., k].std() for k in range(len(columns))])
    error = array_stats.mcse(values, 0, 1, method="mean") / sds
    # Chains that never moved have no variance: R-hat is infinite and ESS undefined.
    if stuck.any():
        bulk, tail = np.nan_to_num(bulk, nan=1.0), np.nan_to_num(tail, nan=1.0)
    words = "The Monte Carlo error of the mean, in sds,"
    return [
        _worst("rhat", "R-hat", rhat, MAX_RHAT, columns),
        _worst("ess_bulk", "The bulk effective sample size", bulk, MIN_ESS, columns, sign=-1),
        _worst("ess_tail", "The tail effective sample size", tail, MIN_ESS, columns, sign=-1),
        _worst("mcse", words, error, MAX_MCSE, columns, bad="warn"),
    ]


def _worst(
    check: str,
    words: str,
    values: Array,
    threshold: float,
    columns: list[str],
    *,
    sign: int = 1,
    bad: Level = "fail",
) -> Finding:
    """Check the column with the largest value, or with the smallest one if the sign is -1."""
    order = np.where(np.isnan(values), np.inf, sign * values)
    k = int(order.argmax())
    level = bad if order[k] > sign * threshold else "ok"
    extreme, relation = ("largest", "at most") if sign > 0 else ("smallest", "at least")
    value = float(values[k])
    message = (
        f"{words} is {_digits(value)} for {columns[k]}, the {extreme} of {len(columns)} quantities "
        f"(it should be {relation} {_digits(threshold)})."
    )
    advice = "Run longer chains with more warm-up."
    return Finding(f"sampling.{check}", level, value, threshold, message, advice, RHAT_SOURCE)


def _digits(number: float) -> str:
    """Format numbers near 1 with three decimals, as needed for R-hat."""
    return f"{number:.3f}" if 0.9 < number < 2 else format_number(number)


def _statistic(truth: xarray.DataTree, name: str) -> Array | None:
    array = variable(truth, "sample_stats", name)
    return None if array is None else chains(array)[..., 0]


def _energy_findings(truth: xarray.DataTree) -> list[Finding]:
    energy = _statistic(truth, "energy")
    if energy is None or energy.shape[1] < MIN_DRAWS or not np.isfinite(energy).all():
        return []
    moving = energy[np.ptp(energy, axis=1) > 0]
    value = float(np.min(array_stats.bfmi(moving, 0, 1))) if len(moving) == len(energy) else 0.0
    message = (
        f"E-BFMI is {format_number(value)} in the worst chain (it should be above "
        f"{format_number(MIN_BFMI)})."
    )
    advice = "Reparameterise heavy tails and funnels, e.g. by non-centred scales."
    return [BFMI("ok" if value > MIN_BFMI else "fail", value, MIN_BFMI, message, advice)]


def _divergence_findings(truth: xarray.DataTree) -> list[Finding]:
    diverging = _statistic(truth, "diverging")
    if diverging is None:
        return []
    count = int((diverging != 0).sum())
    message = f"{count} of {diverging.size} transitions diverged."
    advice = "Raise the acceptance target, then reparameterise."
    return [DIVERGENCES("fail" if count else "ok", count, 0, message, advice)]


def _depth_findings(truth: xarray.DataTree) -> list[Finding]:
    saturated = _statistic(truth, "reached_max_treedepth")
    if saturated is None:
        depth = _statistic(truth, "tree_depth")
        if depth is None:
            return []
        largest = float(truth.attrs.get("max_tree_depth", DEFAULT_TREE_DEPTH))
        saturated = (depth >= largest).astype(float)
    share = float(np.mean(saturated != 0))
    message = f"{format_share(share)} of the trajectories reached the maximum tree depth."
    advice = "Raise the maximum tree depth, or rescale the parameters."
    level = level_of(share, MAX_SATURATED)
    return [TREE_DEPTH(level, share, MAX_SATURATED, message, advice)]
