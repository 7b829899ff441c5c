"""Loss of predictive accuracy by quantization."""

import json
import math
from collections.abc import Mapping
from typing import Any

import xarray

from zoo.diagnostics.finding import Finding, format_number, format_share, level_of
from zoo.diagnostics.reading import variable

SOURCE = "Achterhold et al. (2018)"
#: Tolerated increase of the error rate, and relative increase of the root mean squared error.
ERROR_RISE = 0.01
RMSE_RISE = 0.05
#: An increase below this many standard errors is noise. Both networks predict the same rows and
#: mostly agree, so the standard error for independent rows is an upper bound.
RISE_Z = 2.0
ADVICE = (
    "Train longer, use a longer KL warm-up or a finer codebook, or do not quantize the first and "
    "last layer."
)


def quantization_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare the scores of the quantized network with those of the posterior means.

    The scores are in the root attribute ``metrics`` of fits whose weights have a codebook.
    """
    metrics = _metrics(tree)
    observed = variable(tree, "held_out", "y")
    if observed is None:
        return []
    for score, judge in (("accuracy", _error_rise), ("rmse", _rmse_rise)):
        before, after = (metrics.get(f"test.{part}.{score}") for part in ("mean", "quantized"))
        if isinstance(before, float | int) and isinstance(after, float | int):
            rise, most, message = judge(float(before), float(after), observed.size)
            level = level_of(rise, most)
            return [Finding("compression.quantized", level, rise, most, message, ADVICE, SOURCE)]
    return []


def _error_rise(before: float, after: float, rows: int) -> tuple[float, float, str]:
    """Return the increase of the error rate, its threshold and the message."""
    variance = before * (1 - before) + after * (1 - after)
    message = (
        f"The error rate of the quantized network on held-out rows is {format_share(1 - after)}, "
        f"that of the continuous network {format_share(1 - before)}."
    )
    return before - after, max(ERROR_RISE, RISE_Z * math.sqrt(variance / rows)), message


def _rmse_rise(before: float, after: float, rows: int) -> tuple[float, float, str]:
    message = (
        f"The root mean squared error of the quantized network is {format_number(after)}, that of "
        f"the continuous network {format_number(before)}."
    )
    return after / before - 1 if before > 0 else 0.0, RMSE_RISE, message


def _metrics(tree: xarray.DataTree) -> Mapping[str, Any]:
    try:
        metrics = json.loads(str(tree.attrs.get("metrics", "{}")))
    except ValueError:
        return {}
    return metrics if isinstance(metrics, Mapping) else {}
