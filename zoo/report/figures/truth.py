"""Comparison of fit and truth: densities that differ most, and scatter plots of all outputs."""

import numpy as np
import xarray
from markupsafe import Markup

from zoo.diagnostics.finding import format_number
from zoo.diagnostics.reading import Array
from zoo.diagnostics.truth_distance import Pair, comparable_pairs, distances
from zoo.report.figures.axes import Axes
from zoo.report.figures.canvas import FIT, TRUTH, Picture, panel
from zoo.report.figures.densities import Side, central_range, density_panel, evenly, thin

#: Largest number of panels per quantity.
MAX_PANELS = 4
#: Smallest and largest number of points of a scatter plot.
MIN_POINTS, MAX_POINTS = 8, 400

TITLES = {"functions": "", "log_joint": "log joint", "parameters": "parameter"}


def truth_pictures(tree: xarray.DataTree, truth: xarray.DataTree, words: str) -> list[Picture]:
    """Draw every quantity that both trees hold; `words` name the truth in legends."""
    pairs = comparable_pairs(tree, truth)
    pictures = [_scatter(pair, words) for pair in pairs if len(pair.columns) >= MIN_POINTS]
    panels = [made for pair in pairs for made in _overlays(pair, words)]
    if panels:
        pictures.append(
            Picture(
                panels,
                f"Draws of the fit (solid, filled) and of the truth by {words} (dashed), for the "
                "quantities that differ most; distances in true standard deviations. The curves "
                "should coincide. If the filled curve is too narrow, the fit is overconfident; if "
                "it is shifted, the fit is biased.",
            )
        )
    return pictures


def _overlays(pair: Pair, words: str) -> list[Markup]:
    apart = distances(pair.fit, pair.truth)
    worst = np.argsort(-apart)[:MAX_PANELS]
    return [_overlay(pair, int(k), float(apart[k]), words) for k in worst]


def _overlay(pair: Pair, k: int, apart: float, words: str) -> Markup:
    fit, truth = thin(pair.fit[:, k]), thin(pair.truth[:, k])
    ranges = [central_range(fit, 0.999), central_range(truth, 0.999)]
    bounds = min(low for low, _ in ranges), max(high for _, high in ranges)
    kind = TITLES[pair.name]
    name = kind if pair.name == "log_joint" else f"{kind} {pair.columns[k]}".strip()
    alt = (
        f"{name}: the fit has mean {format_number(float(fit.mean()))} and sd "
        f"{format_number(float(fit.std()))}, the truth {format_number(float(truth.mean()))} and "
        f"{format_number(float(truth.std()))}; distance {format_number(apart)} true sds."
    )
    sides = [Side("fit", fit, FIT, filled=True), Side(words, truth, TRUTH, "--")]
    return density_panel(f"{name}, distance {format_number(apart)}", sides, bounds, alt)


def _scatter(pair: Pair, words: str) -> Picture:
    shown = evenly(len(pair.columns), MAX_POINTS)
    fit, truth = pair.fit[:, shown], pair.truth[:, shown]
    ratio = float(np.median(fit.std(0, ddof=1) / truth.std(0, ddof=1)))
    panels = [
        _diagonal(fit.mean(0), truth.mean(0), f"means of {pair.words}", words),
        _diagonal(fit.std(0, ddof=1), truth.std(0, ddof=1), f"sds of {pair.words}", words),
    ]
    return Picture(
        panels,
        f"Every point is one of {len(shown)} "
        f"{'functions at fixed inputs' if pair.name == 'functions' else 'parameters'}. Points "
        "should lie on the dashed line. Left: points off the line are biased. Right: for points "
        "below the line the uncertainty is too small; the median ratio of sds is "
        f"{format_number(ratio)}.",
    )


def _diagonal(fit: Array, truth: Array, title: str, words: str) -> Markup:
    def paint(axes: Axes) -> None:
        low, high = float(min(fit.min(), truth.min())), float(max(fit.max(), truth.max()))
        margin = 0.05 * (high - low) or 1e-6
        axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
        axes.plot([low, high], [low, high], color=TRUTH, ls="--", lw=1.2)
        axes.plot(truth, fit, "o", ms=5, mew=0, alpha=0.6, color=FIT)
        axes.set(xlabel=words, ylabel="fit", title=title)

    largest = format_number(float(np.abs(fit - truth).max()))
    return panel(
        paint, alt=f"{title}, fit over truth; the largest difference is {largest}.", height=280
    )
