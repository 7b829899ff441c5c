"""Differences of scores between runs, with their standard errors."""

import numpy as np
import pandas as pd

from zoo.diagnostics.finding import format_number
from zoo.report.figures.axes import Axes, label_rows
from zoo.report.figures.canvas import BAND, FIT, Picture, panel, short

#: Largest number of runs drawn, and of other runs named.
MAX_RUNS = 40
MAX_NAMED = 5


def difference_picture(score: str, frame: pd.DataFrame) -> Picture | None:
    """Draw the columns ``difference`` and ``error`` (one standard error) of every run."""
    known = np.isfinite(frame["difference"].astype(float))
    usable = frame[known].head(MAX_RUNS)
    if usable.empty:
        return None
    others = ", ".join(short(str(name)) for name in frame.index[~known][:MAX_NAMED])
    left_out = f" Not shown, because not comparable: {others}." if others else ""
    names = [str(name) for name in usable.index]
    middle = usable["difference"].to_numpy(float)
    error = np.nan_to_num(usable["error"].to_numpy(float))

    def paint(axes: Axes) -> None:
        place = np.arange(len(names))
        axes.axvline(0, color=BAND, lw=1.2)
        axes.hlines(place, middle - 2 * error, middle + 2 * error, color=FIT, lw=1.2)
        axes.hlines(place, middle - error, middle + error, color=FIT, lw=3.5)
        axes.plot(middle, place, "o", color=FIT, ms=5)
        label_rows(axes, names)
        # The label may be longer than the axis, so it extends to the left.
        axes.set_xlabel(f"difference of {short(score, 44)}", loc="right")

    listed = "; ".join(
        f"{short(name)} {format_number(float(d))} ± {format_number(float(e))}"
        for name, d, e in zip(names[:8], middle, error, strict=False)
    )
    return Picture(
        [panel(paint, alt=f"Differences of {score}: {listed}.", height=80 + 26 * len(names))],
        f"Difference of {score} to the run at zero, with one (thick) and two (thin) standard "
        "errors of the difference on the same rows. If a bar includes zero, the difference is not "
        f"significant.{left_out}",
    )
