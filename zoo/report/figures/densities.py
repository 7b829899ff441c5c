"""Kernel density estimates of one quantity from several sources."""

from dataclasses import dataclass

import numpy as np
from arviz_stats.base import array_stats
from markupsafe import Markup
from numpy.typing import NDArray

from zoo.diagnostics.reading import Array
from zoo.report.figures.axes import Axes
from zoo.report.figures.canvas import panel, short

#: Points of a density curve, the smallest number that ArviZ accepts.
POINTS = 100
#: Largest number of draws; more are thinned evenly.
MAX_DRAWS = 4000
#: Margin left and right of a density, as a fraction of its width.
MARGIN = 0.08
#: Smallest number of draws for a curve.
MIN_DRAWS = 5


@dataclass(frozen=True)
class Side:
    """Draws from one source, with their line style."""

    label: str
    values: Array
    colour: str
    line: str = "-"
    filled: bool = False


def evenly(count: int, most: int) -> NDArray[np.int_]:
    """Return at most so many evenly spaced indices below a count."""
    return np.unique(np.linspace(0, count - 1, min(most, count), dtype=int))


def thin(values: Array) -> Array:
    """Return at most `MAX_DRAWS` of the finite values, evenly spaced."""
    flat = values.ravel()
    if len(flat) > MAX_DRAWS:
        flat = flat[np.linspace(0, len(flat) - 1, MAX_DRAWS).round().astype(int)]
    flat = flat.astype(np.float64)
    return flat[np.isfinite(flat)]


def density(values: Array, low: float, high: float) -> tuple[Array, Array] | None:
    """Return grid and density of draws between two bounds, or None if there are too few.

    The curve integrates to the fraction of draws within the bounds.
    """
    inside = values[(values >= low) & (values <= high)]
    if len(inside) < MIN_DRAWS or np.ptp(inside) <= 1e-9 * np.abs(inside).max():
        return None
    # Both ends are extended, unless draws are clipped there or end at zero.
    is_cut = len(inside) < 0.99 * len(values) or 0 <= inside.min() < inside.std()
    limits = None if is_cut else _widened((float(inside.min()), float(inside.max())))
    grid, height, _ = array_stats.kde(
        inside, axis=-1, grid_len=POINTS, bound_correction=is_cut, custom_lims=limits
    )
    return grid, height * len(inside) / len(values)


def central_range(values: Array, share: float) -> tuple[float, float]:
    """Return the central interval with this fraction of the values."""
    low, high = np.quantile(values, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def density_panel(
    name: str,
    sides: list[Side],
    bounds: tuple[float, float],
    alt: str,
    *,
    own_heights: bool = False,
) -> Markup:
    """Overlay densities of one quantity, scaled to equal heights with `own_heights`."""

    def paint(axes: Axes) -> None:
        for side in sides:
            _draw(axes, side, bounds, own_heights)
        axes.set_title(short(name, 44))
        axes.set_ylim(bottom=0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(*_widened(bounds))
        axes.legend(loc="best")

    return panel(paint, alt=alt, height=190)


def _draw(axes: Axes, side: Side, bounds: tuple[float, float], own_height: bool) -> None:
    curve = density(side.values, *bounds)
    if curve is not None and own_height:
        curve = curve[0], curve[1] / curve[1].max()
    if curve is None:
        # All draws are equal, or none is within the bounds.
        if len(side.values):
            axes.axvline(
                float(np.median(side.values)), color=side.colour, ls=side.line, label=side.label
            )
        return
    axes.plot(*curve, color=side.colour, ls=side.line, label=side.label)
    if side.filled:
        axes.fill_between(*curve, color=side.colour, alpha=0.18, lw=0)


def _widened(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    margin = MARGIN * (high - low) or max(abs(low), 1e-6)
    return low - margin, high + margin
