"""What pruning costs: the density of held-out rows with and without the pruned weights."""

import json
from functools import partial

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number, level_of
from zoo.diagnostics.reading import variable

PRUNED = partial(Finding, "compression.pruned", source="paired difference over held-out rows")

#: Nats per held-out row that pruning may cost: warning and failure. A prediction that is off by d
#: noise sds costs d^2 / 2 nats, so these are shifts of 0.2 and of 0.45 sds.
COST_WARN, COST_FAIL = 0.02, 0.1
#: Standard errors by which the cost must be beyond its limit.
SURE = 2.0


def compression_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare held-out densities of the pruned posterior with those of the whole one."""
    groups = json.loads(str(tree.attrs.get("groups", "{}")))
    left = groups.get("weights_left_percent")
    if not tree.attrs.get("compresses", 0) or left is None:
        return []
    if left >= 100:
        message = "No weight can be removed: all groups are above the threshold of pruning."
        advice = "Train longer, or choose a prior that prunes more strongly."
        return [PRUNED("warn", left, 100, message, advice)]
    arrays = [variable(tree, "held_out", name) for name in ("log_density", "pruned_log_density")]
    whole, pruned = (None if array is None else array.to_numpy().ravel() for array in arrays)
    if whole is None or pruned is None or whole.shape != pruned.shape or len(whole) < 2:
        return []
    cost = whole.astype(np.float64) - pruned
    mean, error = float(cost.mean()), float(cost.std(ddof=1) / np.sqrt(len(cost)))
    message = (
        f"Without the pruned weights ({format_number(100 - left)} % of all), the NLL of "
        f"{len(cost)} held-out rows is {format_number(abs(mean))} ± {format_number(error)} nats "
        f"per row {'higher' if mean > 0 else 'lower'}."
    )
    advice = "Prune less (--threshold of zoo compress), or train longer."
    level = level_of(mean - SURE * error, COST_WARN, COST_FAIL)
    return [PRUNED(level, mean, COST_WARN, message, advice)]
