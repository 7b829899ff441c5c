"""Whether the posterior is still at its start: outputs before training and after it."""

from functools import partial

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number
from zoo.diagnostics.reading import variable

START = partial(Finding, "optimisation.start", source="comparison with the untrained posterior")

#: A posterior has not moved if the means of outputs changed by less than this many standard
#: deviations, and these by less than this share.
MOVED = 0.1


def start_findings(tree: xarray.DataTree) -> list[Finding]:
    """Check that training has moved the posterior of the outputs."""
    mean, sd = (variable(tree, "start", name) for name in ("mean", "sd"))
    if mean is None or sd is None or "time" not in mean.dims:
        return []
    means, sds = (a.transpose("time", ...).to_numpy().astype(np.float64) for a in (mean, sd))
    if len(means) != 2 or not (np.isfinite(means).all() and np.isfinite(sds).all()):
        return []
    spread = float(np.sqrt((sds**2).mean()))
    move = float(np.sqrt(((means[1] - means[0]) ** 2).mean()))
    shift = move / spread if spread > 0 else (np.inf if move > 0 else 0.0)
    widths = np.sqrt((sds**2).mean(tuple(range(1, sds.ndim))))
    change = float(abs(np.log(widths[1] / widths[0]))) if widths.min() > 0 else np.inf
    if widths.max() == 0:
        change = 0.0
    value = max(shift, change)
    message = (
        f"Training moved the outputs at fixed rows by {format_number(shift)} of their standard "
        f"deviations and changed these by the factor {format_number(float(np.exp(change)))}."
    )
    if value < MOVED:
        message = f"The posterior is still at its start. {message}"
    advice = "Raise the learning rate or train longer: nothing has been learned."
    return [START("fail" if value < MOVED else "ok", value, MOVED, message, advice)]
