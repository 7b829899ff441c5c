"""Groups of weights kept by pruning."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from zoo.diagnostics.finding import format_number, format_share
from zoo.diagnostics.reading import Array
from zoo.report.figures.axes import Axes, label_rows
from zoo.report.figures.canvas import BAND, FIT, TRUTH, Picture, panel, short
from zoo.report.figures.densities import evenly

#: Largest number of layers drawn.
MAX_SLOTS = 30
#: Largest number of layers with a plot of scores.
MAX_SCORES = 6
#: Points of a curve of scores.
MAX_POINTS = 400


def sparsity_pictures(slots: Mapping[str, Mapping[str, Any]]) -> list[Picture]:
    """Draw the ``groups`` of every slot, those ``kept``, and ``scores`` around ``threshold``."""
    pictures = [_bars(dict(list(slots.items())[:MAX_SLOTS]))]
    drawn = [_scores(name, slot) for name, slot in list(slots.items())[:MAX_SCORES]]
    panels = [made for made in drawn if made is not None]
    if panels:
        pictures.append(
            Picture(
                panels,
                "Sorted scores of the groups of a layer; groups above the dashed threshold are "
                "pruned. If there is a clear step between two levels, pruning is safe; if the "
                "slope is smooth, the threshold is arbitrary.",
            )
        )
    return pictures


def _bars(slots: Mapping[str, Mapping[str, Any]]) -> Picture:
    names = list(slots)
    kept = np.array([slot["kept"] for slot in slots.values()], float)
    groups = np.array([slot["groups"] for slot in slots.values()], float)

    def paint(axes: Axes) -> None:
        place = np.arange(len(names))
        axes.barh(place, np.ones(len(names)), 0.62, color=BAND, alpha=0.25)
        axes.barh(place, kept / groups, 0.62, color=FIT, alpha=0.75)
        for k in place:
            axes.text(1.02, float(k), f"{kept[k]:.0f} of {groups[k]:.0f}", va="center")
        label_rows(axes, names, 22)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        axes.set_xlim(0, 1.32)

    listed = "; ".join(
        f"{short(name)} keeps {format_share(float(k / g))}"
        for name, k, g in zip(names[:8], kept, groups, strict=False)
    )
    return Picture(
        [panel(paint, alt=f"Groups kept per layer: {listed}.", height=60 + 28 * len(names))],
        "Groups of weights kept (filled) per layer. A layer that keeps all groups is not "
        "compressed; one that keeps a single group may be a bottleneck.",
    )


def _scores(name: str, slot: Mapping[str, Any]) -> Markup | None:
    scores: Array = np.sort(np.asarray(slot.get("scores", []), float))
    scores = scores[np.isfinite(scores)]
    if len(scores) < 2:
        return None
    shown = evenly(len(scores), MAX_POINTS)
    threshold = float(slot["threshold"])

    def paint(axes: Axes) -> None:
        axes.plot(shown + 1, scores[shown], ".", ms=4, color=FIT)
        if np.isfinite(threshold):
            axes.axhline(threshold, color=TRUTH, ls="--", lw=1.2)
        axes.set(title=short(name, 44), xlabel="group, sorted", ylabel="score (high: noise)")

    return panel(
        paint,
        alt=f"Sorted scores of {len(scores)} groups of {short(name)}, from "
        f"{format_number(float(scores[0]))} to {format_number(float(scores[-1]))}, threshold "
        f"{format_number(threshold)}.",
        height=200,
    )
