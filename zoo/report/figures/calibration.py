"""Calibration of predicted probabilities and intervals on held-out rows."""

import numpy as np
import xarray
from markupsafe import Markup
from numpy.typing import NDArray
from scipy import stats

from zoo.diagnostics.finding import format_number, format_share
from zoo.diagnostics.held_out import COVERAGE_LEVELS, reliability_curve
from zoo.diagnostics.reading import Array
from zoo.diagnostics.uniformity import randomized_pit, uniformity
from zoo.report.figures.axes import Axes, legend_above
from zoo.report.figures.canvas import BAND, FIT, TRUTH, Picture, panel
from zoo.report.held_out import held_out_classes, held_out_draws

#: Bars of the histogram of confidences.
BARS = 20
#: Interval levels of the coverage curve.
LEVELS = np.linspace(0.05, 0.95, 19)


def calibration_pictures(tree: xarray.DataTree) -> list[Picture]:
    """Draw calibration of probabilities or intervals, depending on the held-out data."""
    classes, intervals = held_out_classes(tree), held_out_draws(tree)
    pictures = []
    if classes is not None:
        pictures.append(_reliability(classes.probability, classes.y))
    if intervals is not None:
        pictures.append(_pit(randomized_pit(*intervals)))
    return pictures


def _reliability(probability: Array, y: NDArray[np.int_]) -> Picture:
    curve = reliability_curve(probability, y.astype(np.float64))
    confidence, right = probability.max(-1), probability.argmax(-1) == y
    accuracy = curve["accuracy"].to_numpy()
    middle = curve["confidence"].to_numpy()

    def reliability(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=TRUTH, ls="--", lw=1.2, label="perfect")
        axes.vlines(middle, curve["lower"], curve["upper"], color=FIT, lw=1.2)
        axes.plot(middle, accuracy, "o-", color=FIT, ms=5, lw=1, label="held-out rows")
        axes.set(xlabel="confidence", ylabel="accuracy")
        axes.set(xlim=(min(0.5, middle.min()) - 0.02, 1.02), ylim=(-0.02, 1.02))
        legend_above(axes)

    def histogram(axes: Axes) -> None:
        edges = np.linspace(confidence.min(), 1, BARS + 1)
        if edges[0] == edges[-1]:
            edges = np.linspace(0, 1, BARS + 1)
        hits, misses = (np.histogram(confidence[side], edges)[0] for side in (right, ~right))
        width = edges[1] - edges[0]
        axes.bar(edges[:-1], hits, width, align="edge", color=FIT, alpha=0.6, label="correct")
        axes.bar(
            edges[:-1], misses, width, align="edge", bottom=hits, label="wrong",
            facecolor="none", edgecolor=TRUTH, hatch="////", lw=1,
        )  # fmt: skip
        axes.set(xlabel="confidence", ylabel="rows")
        legend_above(axes)

    gap = format_number(float(np.abs(accuracy - middle).max()))
    return Picture(
        [
            panel(
                reliability,
                alt=f"Reliability curve over {len(middle)} bins of confidence; the largest gap "
                f"between confidence and accuracy is {gap}.",
            ),
            panel(
                histogram,
                alt=f"Histogram of confidences: {int(right.sum())} of {len(y)} rows are correct, "
                f"the mean confidence is {format_share(float(confidence.mean()))}.",
            ),
        ],
        "Left: of the rows predicted with a confidence of 80 %, 80 % should be correct, so that "
        "points lie on the dashed line. Below it the model is overconfident, above it "
        "underconfident; bars are 95 % intervals. Right: distribution of confidences; wrong "
        "predictions (hatched) should be on the left.",
    )


def _pit(pit: Array) -> Picture:
    result = uniformity(pit)

    def ecdf(axes: Axes) -> None:
        points = result.points
        axes.fill_between(
            points, result.lower - points, result.upper - points, color=BAND, alpha=0.3, lw=0,
            label="99 % band",
        )  # fmt: skip
        axes.axhline(0, color=TRUTH, ls="--", lw=1.2)
        axes.plot(points, result.ecdf - points, color=FIT, label="held-out rows")
        axes.set_xlabel("PIT: quantile of the observation in its prediction")
        axes.set_ylabel("distribution − uniform")
        legend_above(axes)

    state = "inside" if result.inside else "outside"
    panels = [
        panel(
            ecdf,
            alt=f"PIT distribution of {len(pit)} held-out rows minus the uniform one: {state} the "
            f"99 % band, largest distance {format_number(result.distance)}.",
        ),
        _coverage(pit),
    ]
    return Picture(
        panels,
        "Left: the line should stay in the band. If it is above on the left and below on the "
        "right, predictions are too narrow; if the reverse, too wide; if all above or all below, "
        "biased. Right: the coverage of intervals (solid) should equal their nominal level "
        "(dashed). Below the dashed line intervals are too narrow.",
    )


def _coverage(pit: Array) -> Markup:
    centred = np.abs(2 * pit - 1)
    observed = np.array([(centred <= level).mean() for level in LEVELS])
    low = stats.binom.ppf(0.025, len(pit), LEVELS) / len(pit)
    high = stats.binom.ppf(0.975, len(pit), LEVELS) / len(pit)

    def paint(axes: Axes) -> None:
        axes.fill_between(LEVELS, low, high, color=BAND, alpha=0.3, lw=0, label="95 % by chance")
        axes.plot([0, 1], [0, 1], color=TRUTH, ls="--", lw=1.2, label="nominal")
        axes.plot(LEVELS, observed, color=FIT, label="held-out rows")
        axes.set(xlabel="nominal level", ylabel="coverage")
        legend_above(axes)

    shares = ", ".join(
        f"{format_share(level)} intervals cover {format_share(float((centred <= level).mean()))}"
        for level in COVERAGE_LEVELS
    )
    return panel(paint, alt=f"Coverage of predictive intervals: {shares} of the rows.")
