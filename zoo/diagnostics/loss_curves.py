"""Loss curves: windows, blocks, and the change of a noisy curve."""

import numpy as np
import xarray
from scipy import stats

from zoo.diagnostics.reading import Array, variable

#: Fraction of the steps, at the end, in which convergence is checked.
WINDOW = 0.25
#: Number of blocks into which the window is averaged.
BLOCKS = 20
#: Smallest number of steps for which a slope is estimated.
MIN_STEPS = 2 * BLOCKS
#: Residuals of block averages are clipped at this many robust standard deviations.
OUTLIER = 3.0
#: A change over the window below this many standard errors is noise. Exceeded by 2 of 1000 flat
#: curves whose noise is autocorrelated (0.7) and heavy-tailed (Student t, 3 degrees of freedom).
SLOPE_Z = 4.0
#: A change of the loss by more than this many tolerances is a failure.
FAIL_FACTOR = 10.0


def curve_of(tree: xarray.DataTree, name: str) -> Array | None:
    """Return a curve as ``(chain, step)``."""
    array = variable(tree, "optimization", name)
    steps = [] if array is None else [d for d in ("step", "gradient_step") if d in array.dims]
    if array is None or not steps:
        return None
    values = array.transpose(..., steps[0]).to_numpy().astype(np.float64)
    return values.reshape(-1, values.shape[-1])


def last_quarter(curves: Array) -> Array:
    """Return the end of curves, in which convergence is checked."""
    return curves[:, -max(1, round(WINDOW * curves.shape[1])) :]


def block_means(values: Array) -> Array:
    """Return the averages of `BLOCKS` blocks, which have little autocorrelation left."""
    return np.array([part.mean() for part in np.array_split(values, min(BLOCKS, len(values)))])


def change_over_window(window: Array) -> tuple[float, float]:
    """Return the change of a noisy curve over the window and its standard error.

    The slope of the block averages is estimated by Sen's method. Its error is that of a
    least-squares slope with clipped residuals.
    """
    blocks = block_means(window)
    time = np.linspace(0.0, 1.0, len(blocks))
    slope = float(stats.theilslopes(blocks, time).slope)
    residuals = blocks - slope * time
    residuals -= np.median(residuals)
    limit = OUTLIER * float(stats.median_abs_deviation(residuals, scale="normal"))
    scale = float(residuals.clip(-limit, limit).std())
    # Slope and intercept use up two degrees of freedom.
    scale *= np.sqrt(len(blocks) / max(1, len(blocks) - 2))
    return slope, float(scale / np.sqrt(((time - time.mean()) ** 2).sum()))
