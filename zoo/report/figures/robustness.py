"""Scores over the strength of attacks, for one run or several."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from zoo.diagnostics.finding import format_number
from zoo.diagnostics.robustness import ATTACKS, STRENGTHS, Curve
from zoo.report.figures.canvas import (
    BAND,
    DIM,
    FIT,
    INK,
    TRUTH,
    Picture,
    legend_above,
    panel,
    short,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Largest number of runs drawn: colours times dashes.
COLOURS = (FIT, TRUTH, INK, BAND)
DASHES = ("-", "--", ":")
MAX_RUNS = len(COLOURS) * len(DASHES)

TITLES = {
    "accuracy": "accuracy",
    "rmse": "root mean squared error",
    "nll": "negative log-likelihood per row",
}
READING = {
    "accuracy": "The higher the curve stays, the more robust is the fit.",
    "rmse": "The lower the curve stays, the more robust is the fit.",
    "nll": "Lower is better. A steep increase means that predictions are wrong and overconfident; "
    "a fit with calibrated uncertainty stays low although its accuracy decreases.",
}


def robustness_picture(runs: Mapping[str, Sequence[Curve]], score: str) -> Picture | None:
    """Draw a score with one panel per attack and one line per run.

    Parameters
    ----------
    runs
        Curves by name of the run; the name of a single run is not shown.
    score
        The score to draw; other curves are ignored.
    """
    shown = dict(list(runs.items())[:MAX_RUNS])
    panels = []
    for attack in ATTACKS:
        lines = {
            name: curve
            for name, curves in shown.items()
            for curve in curves
            if curve.attack == attack and curve.score == score
        }
        if lines:
            panels.append(_panel(attack, score, lines, named=len(runs) > 1))
    if not panels:
        return None
    left_out = f" The first {MAX_RUNS} of {len(runs)} runs." if len(runs) > MAX_RUNS else ""
    return Picture(panels, f"{TITLES[score].capitalize()} under attack. {READING[score]}{left_out}")


def _panel(attack: str, score: str, lines: Mapping[str, Curve], *, named: bool) -> Markup:
    def paint(axes: "Axes") -> None:
        for index, (name, curve) in enumerate(lines.items()):
            axes.plot(
                curve.strength,
                curve.value,
                color=COLOURS[index % len(COLOURS)],
                linestyle=DASHES[index // len(COLOURS)],
                marker="o",
                ms=3.5,
                label=short(name, 24),
            )
        if score == "accuracy":
            axes.set_ylim(-0.02, 1.02)
        else:
            axes.set_ylim(bottom=0.0 if all((c.value >= 0).all() for c in lines.values()) else None)
        axes.set_xlabel(STRENGTHS[attack])
        axes.set_ylabel(TITLES[score], color=DIM)
        title = ATTACKS[attack].capitalize()
        if named:
            legend_above(axes)
            # The legend is placed between the title and the data, in rows of three.
            axes.set_title(title, pad=8 + 16 * -(-len(lines) // 3))
        else:
            axes.set_title(title)

    told = "; ".join(
        (f"{short(name)}: " if named else "")
        + f"from {format_number(float(curve.value[0]))} to {format_number(float(curve.value[-1]))}"
        f" at {format_number(float(curve.strength[-1]))}"
        for name, curve in list(lines.items())[:8]
    )
    extra = 16.0 * -(-len(lines) // 3) if named else 0.0
    return panel(
        paint, alt=f"{TITLES[score].capitalize()}, {ATTACKS[attack]}: {told}.", height=220 + extra
    )
