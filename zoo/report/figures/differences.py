"""Differences of scores between runs, with their standard errors."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zoo.diagnostics.finding import format_number
from zoo.report.figures.canvas import BAND, FIT, Picture, panel, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Runs that are drawn.
MAX_RUNS = 40


def difference_picture(score: str, frame: pd.DataFrame) -> Picture | None:
    """Draw differences with bars of one and two standard errors.

    Parameters
    ----------
    score
        What differs.
    frame
        Columns ``difference`` and ``error``, one row per run.
    """
    usable = frame[np.isfinite(frame["difference"].astype(float))].head(MAX_RUNS)
    if usable.empty:
        return None
    names = [str(name) for name in usable.index]
    middle = usable["difference"].to_numpy(float)
    error = np.nan_to_num(usable["error"].to_numpy(float))

    def paint(axes: "Axes") -> None:
        place = np.arange(len(names))
        axes.axvline(0, color=BAND, lw=1.2)
        axes.hlines(place, middle - 2 * error, middle + 2 * error, color=FIT, lw=1.2)
        axes.hlines(place, middle - error, middle + error, color=FIT, lw=3.5)
        axes.plot(middle, place, "o", color=FIT, ms=5)
        axes.set_yticks(place, [short(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"difference of {short(score, 40)}")

    listed = "; ".join(
        f"{short(name)} {format_number(float(d))} ± {format_number(float(e))}"
        for name, d, e in zip(names[:8], middle, error, strict=False)
    )
    return Picture(
        [panel(paint, alt=f"Differences of {score}: {listed}.", height=80 + 26 * len(names))],
        f"Difference of {score} to the run at zero, with one (thick) and two (thin) standard "
        "errors of the difference on the same rows. Bars that cross zero: the data do not tell the "
        "runs apart.",
    )
