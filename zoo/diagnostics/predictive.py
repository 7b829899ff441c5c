"""Posterior predictive check: comparison of replicated with observed data."""

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray
from scipy import stats

from zoo.diagnostics.finding import Finding, Level, format_number, format_share
from zoo.diagnostics.reading import Array, replications, task_of

POSTERIOR_CHECK = partial(
    Finding,
    "predictive.posterior_check",
    source="Gelman, Meng and Stern (1996); Gabry et al. (2019)",
)

#: A predictive p-value below this, over all statistics together, is a warning.
PPC_P_VALUE = 0.01
#: An observed statistic beyond all replications and this many of their sds away is a failure.
PPC_FAIL_SDS = 5.0

Statistics = dict[str, Callable[[Array], Array]]


def posterior_predictive_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare statistics of the observed data with those of posterior predictive draws."""
    pair = _replications(tree, "posterior_predictive")
    if pair is None:
        return []
    replicated, y = pair
    bad = float((~np.isfinite(replicated)).any(1).mean())
    if bad:
        message = f"{format_share(bad)} of the posterior predictive draws are not finite."
        advice = "Look for network outputs that overflow, or for a scale without a lower bound."
        return [POSTERIOR_CHECK("fail", bad, 0, message, advice)]
    judged = _statistics(task_of(tree), y)
    worst = _worst_statistic(replicated, y, judged)
    limit = _limit(len(judged))
    level: Level = "ok"
    if worst.unusual:
        failing = worst.beyond_all and abs(worst.sds) > PPC_FAIL_SDS
        level = "fail" if failing else "warn"
    place = "beyond all" if worst.beyond_all else "within the range of"
    message = (
        f"Of {len(judged)} statistics of the training data, the {worst.name} fits worst: "
        f"{format_number(worst.observed)} observed, {format_number(worst.center)} ± "
        f"{format_number(worst.spread)} in posterior predictive draws, {place} {len(replicated)} "
        f"draws and {format_number(abs(worst.sds))} sds from their mean (limit "
        f"{format_number(limit)})."
    )
    advice = "Change the likelihood or the network."
    return [POSTERIOR_CHECK(level, abs(worst.sds), limit, message, advice)]


class _Statistic:
    """Position of an observed statistic among its replications."""

    def __init__(self, name: str, replicated: Array, observed: float, count: int) -> None:
        total = len(replicated)
        above, below = (replicated >= observed).sum(), (replicated <= observed).sum()
        self.name = name
        self.observed = observed
        self.center = float(np.mean(replicated))
        self.spread = float(np.std(replicated))
        self.p_value = float(min(1.0, 2 * (1 + min(above, below)) / (total + 1)))
        self.beyond_all = bool(min(above, below) == 0)
        gap = observed - self.center
        self.sds = gap / self.spread if self.spread > 0 else (np.inf if gap else 0.0)
        # With few draws the p-value cannot be small; then all draws must lie on one side.
        small = self.p_value <= max(PPC_P_VALUE / count, 2 / (total + 1))
        self.unusual = bool(small and abs(self.sds) > _limit(count))


def _limit(count: int) -> float:
    """Return the distance in sds with a probability of `PPC_P_VALUE` over several statistics."""
    return float(stats.norm.isf(PPC_P_VALUE / (2 * count)))


def _worst_statistic(replicated: Array, y: Array, judged: Statistics) -> _Statistic:
    found = [
        _Statistic(name, function(replicated), float(function(y[None])[0]), len(judged))
        for name, function in judged.items()
    ]
    # One that is unusual first; then by distance, so that the value agrees with the limit.
    return max(found, key=lambda statistic: (statistic.unusual, abs(statistic.sds)))


def _replications(tree: xarray.DataTree, group: str) -> tuple[Array, Array] | None:
    """Return replicated and observed y of the rows with a finite observation."""
    pair = replications(tree, group)
    if pair is None or len(pair[0]) < 2:
        return None
    replicated, y = pair
    finite = np.isfinite(y)
    return (replicated[:, finite], y[finite]) if finite.any() else None


def _statistics(task: str, y: Array) -> Statistics:
    if task == "classification":
        return _class_frequencies(y)
    common: Statistics = {
        "mean": lambda data: data.mean(-1),
        "standard deviation": lambda data: data.std(-1),
    }
    if task == "counts":
        return common | {"share of zeros": lambda data: (data == 0).mean(-1)}
    return common | {
        "5 % quantile": lambda data: np.quantile(data, 0.05, axis=-1),
        "95 % quantile": lambda data: np.quantile(data, 0.95, axis=-1),
    }


def _class_frequencies(y: Array) -> Statistics:
    def frequency(label: float) -> Callable[[Array], Array]:
        return lambda data: (data == label).mean(-1)

    return {f"frequency of class {label:g}": frequency(label) for label in np.unique(y)}
