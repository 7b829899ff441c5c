"""Forest plot of interpretable parameters: scalar sites and identified parameters."""

from dataclasses import dataclass

import numpy as np
import xarray
from markupsafe import Markup

from zoo.diagnostics.finding import format_number
from zoo.diagnostics.reading import Array, draws, identified, labels, variable, variables
from zoo.report.figures.axes import Axes, label_rows, legend_above
from zoo.report.figures.canvas import BAND, FIT, TRUTH, Picture, panel, short

#: Largest number of rows.
MAX_ROWS = 24
#: Parameters whose widths differ by more than this factor get separate panels.
SCALE_FACTOR = 30.0
MAX_PANELS = 4
#: Quantiles of the thin and thick lines, and the median.
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)


@dataclass(frozen=True)
class Row:
    """One parameter: quantiles, mean and sd of the fit, and quantiles of the truth if known."""

    name: str
    fit: Array
    mean: float
    sd: float
    truth: Array | None


def parameter_rows(tree: xarray.DataTree, truth: xarray.DataTree | None) -> list[Row]:
    """Return the scalar sites and the elements of identified sites, at most `MAX_ROWS`."""
    rows: list[Row] = []
    named = identified(tree) or ([] if truth is None else identified(truth))
    for name in [*named, *(n for n in variables(tree, "posterior") if n not in named)]:
        array = variable(tree, "posterior", name)
        if array is None or "draw" not in array.dims or len(rows) >= MAX_ROWS:
            continue
        columns = _columns(array)
        if columns > 1 and name not in named:
            continue
        other = None if truth is None else variable(truth, "posterior", name)
        known = draws(other) if other is not None and _columns(other) == columns else None
        values = draws(array)
        rows += [
            _row(label, values[:, k], None if known is None else known[:, k])
            for k, label in enumerate(labels(array)[: MAX_ROWS - len(rows)])
            if np.isfinite(values[:, k]).all()
        ]
    return rows


def forest_picture(rows: list[Row], words: str) -> Picture | None:
    """Draw the rows, one panel per order of magnitude."""
    if not rows:
        return None
    with_truth = any(row.truth is not None for row in rows)
    panels = [_forest(part, words) for part in _by_scale(rows)]
    signs = (
        " If an interval includes zero (vertical line), the sign is uncertain."
        if any(row.fit[0] < 0 for row in rows)
        else ""
    )
    truth = f" Squares below: {words}; the two should agree." if with_truth else ""
    return Picture(
        panels,
        "Scalar sites and identified parameters: median (dot), central 50 % (thick) and 95 % "
        f"(thin) of the draws.{signs}{truth}",
    )


def _columns(array: xarray.DataArray) -> int:
    return int(np.prod([size for dim, size in array.sizes.items() if dim not in ("chain", "draw")]))


def _row(name: str, fit: Array, truth: Array | None) -> Row:
    known = None if truth is None or not np.isfinite(truth).all() else np.quantile(truth, QUANTILES)
    return Row(name, np.quantile(fit, QUANTILES), float(fit.mean()), float(fit.std()), known)


def _by_scale(rows: list[Row]) -> list[list[Row]]:
    """Split rows into panels of similar scale."""
    extents = [float(max(np.abs(row.fit).max(), 1e-300)) for row in rows]
    parts: list[list[int]] = []
    for k in sorted(range(len(rows)), key=lambda k: -extents[k]):
        fits = parts and extents[parts[-1][0]] <= SCALE_FACTOR * extents[k]
        if fits or len(parts) == MAX_PANELS:
            parts[-1].append(k)
        else:
            parts.append([k])
    return [[rows[k] for k in sorted(part)] for part in parts]


def _forest(rows: list[Row], words: str) -> Markup:
    with_truth = any(row.truth is not None for row in rows)

    def paint(axes: Axes) -> None:
        low = min(row.fit[0] for row in rows)
        high = max(row.fit[-1] for row in rows)
        if low <= 0 <= high:
            axes.axvline(0, color=BAND, lw=1)
        for k, row in enumerate(rows):
            offset = 0.0 if row.truth is None else 0.16
            _intervals(axes, row.fit, k - offset, FIT, "o", None if k else "fit")
            if row.truth is not None:
                _intervals(axes, row.truth, k + offset, TRUTH, "s", None if k else words)
        label_rows(axes, [row.name for row in rows])
        if with_truth:
            legend_above(axes)

    described = "; ".join(
        f"{short(row.name)} {format_number(float(row.fit[2]))} "
        f"({format_number(float(row.fit[0]))} to {format_number(float(row.fit[-1]))})"
        for row in rows[:8]
    )
    beside = f" of the fit and {words}" if with_truth else ""
    alt = f"Forest plot of medians and 95 % intervals{beside}: {described}."
    return panel(paint, alt=alt, height=70 + 26 * len(rows))


def _intervals(
    axes: Axes, quantiles: Array, y: float, colour: str, marker: str, label: str | None
) -> None:
    axes.plot(quantiles[[0, 4]], [y, y], color=colour, lw=1.2)
    axes.plot(quantiles[[1, 3]], [y, y], color=colour, lw=3.5, solid_capstyle="butt")
    axes.plot(quantiles[2], y, marker, color=colour, ms=5, label=label)
