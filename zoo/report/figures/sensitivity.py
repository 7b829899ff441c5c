"""Overlaid densities of prior and posterior."""

import numpy as np
import xarray
from markupsafe import Markup

from zoo.diagnostics.finding import format_number
from zoo.diagnostics.reading import Array, labels, variable, variables
from zoo.report.figures.canvas import BAND, FIT, Picture
from zoo.report.figures.densities import MIN_DRAWS, Side, central_range, density_panel, thin

#: Largest number of sites drawn.
MAX_SITES = 6
#: Positive sites whose draws differ by more than this factor are drawn on a log scale.
LOG_RATIO = 1000.0


def prior_picture(tree: xarray.DataTree) -> Picture | None:
    """Draw prior and posterior of the sites that changed most; elements of a site are pooled."""
    found = []
    for name in variables(tree, "posterior"):
        before, after = variable(tree, "prior", name), variable(tree, "posterior", name)
        if before is None or after is None or "draw" not in after.dims:
            continue
        pair = thin(before.to_numpy()), thin(after.to_numpy())
        if min(map(len, pair)) >= MIN_DRAWS:
            found.append((_change(*pair), name, after, pair))
    if not found:
        return None
    found.sort(key=lambda row: -row[0])
    panels = [_panel(name, after, *pair) for _, name, after, pair in found[:MAX_SITES]]
    left_out = len(found) - len(panels)
    some = f" {left_out} sites that changed less are not shown." if left_out else ""
    return Picture(
        panels,
        "Posterior (solid, filled) and prior (dotted). If they are equal, the data were not "
        "informative; if the posterior is in the tail of its prior, prior and data disagree. "
        "Elements of a site are pooled, and wide priors are clipped. Curves are scaled to the same "
        f"height, so compare locations and widths.{some}",
    )


def _change(before: Array, after: Array) -> float:
    """Return how far the quartiles moved, in interquartile ranges of the prior."""
    old, new = np.quantile(before, [0.25, 0.5, 0.75]), np.quantile(after, [0.25, 0.5, 0.75])
    width = old[2] - old[0]
    return float(np.abs(new - old).max() / width) if width > 0 else 0.0


def _panel(name: str, array: xarray.DataArray, before: Array, after: Array) -> Markup:
    per_draw = len(labels(array))
    title = name if per_draw == 1 else f"{name} ({per_draw} elements)"
    alt = _alt(name, before, after)
    by_logarithm = _spans_decades(before, after)
    if by_logarithm:
        before, after, title = np.log10(before), np.log10(after), f"log10 of {title}"
    inner, outer = central_range(before, 0.5), central_range(after, 0.99)
    bounds = min(inner[0], outer[0]), max(inner[1], outer[1])
    if not by_logarithm:
        # With a very wide prior the posterior would be too narrow to see.
        width = max(outer[1] - outer[0], 1e-12)
        bounds = max(bounds[0], outer[0] - 2 * width), min(bounds[1], outer[1] + 2 * width)
    sides = [Side("posterior", after, FIT, filled=True), Side("prior", before, BAND, ":")]
    return density_panel(title, sides, bounds, alt, own_heights=True)


def _spans_decades(before: Array, after: Array) -> bool:
    """Return whether positive draws span several orders of magnitude."""
    both = np.concatenate([before, after])
    if both.min() <= 0:
        return False
    low, high = central_range(both, 0.9)
    return high > LOG_RATIO * low


def _alt(name: str, before: Array, after: Array) -> str:
    widths = [np.subtract(*np.quantile(values, [0.75, 0.25])) for values in (after, before)]
    spread = [format_number(float(width)) for width in widths]
    return (
        f"{name}: interquartile range {spread[0]} after and {spread[1]} before seeing the data; "
        f"medians {format_number(float(np.median(after)))} and "
        f"{format_number(float(np.median(before)))}."
    )
