"""The ELBO over steps: the whole run and the window of the convergence check."""

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number
from zoo.diagnostics.loss_curves import WINDOW
from zoo.diagnostics.reading import Array, variable
from zoo.report.figures.axes import Axes
from zoo.report.figures.canvas import BAND, FIT, INK, Picture, panel

#: Points of a raw and of a smoothed curve.
RAW_POINTS, SMOOTH_POINTS = 400, 60
#: Margin above and below the second half of the run, as a multiple of its height.
ROOM = 5.0
#: Largest number of restarts drawn.
MAX_CHAINS = 6


def elbo_picture(tree: xarray.DataTree, findings: list[Finding]) -> Picture | None:
    """Draw minus the loss of every restart."""
    array = variable(tree, "optimization", "loss")
    if array is None or "step" not in array.dims:
        return None
    losses = array.transpose(..., "step").to_numpy().astype(np.float64)
    elbos = -losses.reshape(-1, losses.shape[-1])[:MAX_CHAINS]
    steps = elbos.shape[1]
    if steps < 2 or np.isfinite(elbos).sum() < 2:
        return None
    start = steps - max(1, round(WINDOW * steps))
    state = _state(findings)
    label = f"last quarter: {state}" if state else "last quarter"

    def whole(axes: Axes) -> None:
        axes.axvspan(start, steps, color=BAND, alpha=0.18, lw=0, zorder=0)
        _curves(axes, elbos, 0)
        axes.set_ylim(*_limits(elbos))
        axes.text(0.99, 0.05, label, ha="right", va="bottom", color=INK, transform=axes.transAxes)
        axes.set_title("whole run")

    def end(axes: Axes) -> None:
        axes.set_facecolor(BAND)
        axes.patch.set_alpha(0.18)
        _curves(axes, elbos[:, start:], start)
        axes.set_title("last quarter, enlarged")

    final = format_number(float(np.nanmean(np.where(np.isfinite(elbos), elbos, np.nan)[:, start:])))
    alt = f"ELBO in nats over {steps} steps; the mean of the last quarter is {final}."
    restarts = f" Every line is one of {len(elbos)} restarts." if len(elbos) > 1 else ""
    return Picture(
        [panel(whole, alt=alt), panel(end, alt=f"The last quarter of the same curve. {alt}")],
        "The ELBO should increase and end flat. The convergence check uses the shaded last "
        "quarter: if the curve still rises there, use more steps; if it jumps, lower the learning "
        "rate. Faint: single steps, noisy because of mini-batches and sampling; strong: their "
        f"running mean. Values far from the end are clipped.{restarts} During KL warm-up the curve "
        "shows the objective with the current weight of the KL.",
    )


def _state(findings: list[Finding]) -> str:
    levels = [f.level for f in findings if f.check == "optimisation.converged"]
    if not levels:
        return ""
    return "converged" if levels[0] == "ok" else "not converged"


def _curves(axes: Axes, elbos: Array, first: int) -> None:
    for curve in elbos:
        steps = np.arange(first, first + len(curve))
        finite = np.isfinite(curve)
        if finite.sum() < 2:
            continue
        steps, values = steps[finite], curve[finite]
        shown = _evenly(len(values), RAW_POINTS)
        axes.plot(steps[shown], values[shown], color=FIT, alpha=0.28, lw=0.8)
        pieces = min(SMOOTH_POINTS, len(values))
        axes.plot(_means(steps, pieces), _means(values, pieces), color=FIT)
    axes.set(xlabel="step", ylabel="ELBO (nats)")
    axes.margins(x=0)


def _limits(elbos: Array) -> tuple[float, float]:
    """Return the range of the second half of the run, with a margin.

    The first steps and those of the KL warm-up can be thousands of nats away.
    """
    late = elbos[:, elbos.shape[1] // 2 :]
    late = late[np.isfinite(late)] if np.isfinite(late).any() else elbos[np.isfinite(elbos)]
    low, high = (float(value) for value in np.quantile(late, [0.01, 0.99]))
    room = ROOM * (high - low) or max(1e-6, 0.01 * abs(high))
    finite = elbos[np.isfinite(elbos)]
    lowest, highest = float(finite.min()) - 0.05 * room, float(finite.max()) + 0.05 * room
    return max(low - room, lowest), min(high + room, highest)


def _evenly(count: int, points: int) -> "np.typing.NDArray[np.int_]":
    return np.unique(np.linspace(0, count - 1, min(points, count)).round().astype(int))


def _means(values: Array, pieces: int) -> Array:
    return np.array([piece.mean() for piece in np.array_split(values, pieces)])
