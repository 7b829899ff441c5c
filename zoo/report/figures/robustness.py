"""Scores over the strength of attacks, for one run or several."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from zoo.diagnostics.finding import format_number
from zoo.diagnostics.robustness import ATTACKS, STRENGTHS, Curve
from zoo.report.figures.axes import Axes, legend_above
from zoo.report.figures.canvas import BAND, FIT, INK, TRUTH, Picture, panel, short
from zoo.report.tables import NAMES

#: Largest number of runs drawn: colours times dashes.
COLOURS = (FIT, TRUTH, INK, BAND)
DASHES = ("-", "--", ":")
MAX_RUNS = len(COLOURS) * len(DASHES)

#: Scores that are drawn, and how to read them.
READING = {
    "accuracy": "The higher the curve stays, the more robust is the fit.",
    "rmse": "The lower the curve stays, the more robust is the fit.",
    "nll": "Lower is better. A steep increase means that predictions are wrong and overconfident; "
    "a fit with calibrated uncertainty stays low although its accuracy decreases.",
}


def robustness_picture(runs: Mapping[str, Sequence[Curve]], score: str) -> Picture | None:
    """Draw one score of runs: one panel per attack and one line per run, named if several."""
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
    return Picture(panels, f"{NAMES[score].capitalize()} under attack. {READING[score]}{left_out}")


def _panel(attack: str, score: str, lines: Mapping[str, Curve], *, named: bool) -> Markup:
    # The legend is placed between the title and the data, in rows of three.
    extra = 16 * -(-len(lines) // 3) if named else 0

    def paint(axes: Axes) -> None:
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
        axes.set(xlabel=STRENGTHS[attack], ylabel=NAMES[score])
        axes.set_title(ATTACKS[attack].capitalize(), pad=8 + extra if named else None)
        if named:
            legend_above(axes)

    told = "; ".join(
        (f"{short(name)}: " if named else "")
        + f"from {format_number(float(curve.value[0]))} to {format_number(float(curve.value[-1]))}"
        f" at {format_number(float(curve.strength[-1]))}"
        for name, curve in list(lines.items())[:8]
    )
    alt = f"{NAMES[score].capitalize()}, {ATTACKS[attack]}: {told}."
    return panel(paint, alt=alt, height=220 + extra)
