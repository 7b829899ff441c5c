"""The graph of a network with random structure, with the weights of its primitives."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zoo.diagnostics.finding import format_share
from zoo.report.figures.axes import Axes
from zoo.report.figures.canvas import BAND, FIT, INK, Picture, panel, short

#: Line width, in points, of a primitive with weight one.
WIDEST = 7.0
#: Smaller weights are drawn as thin dashes without a name.
SMALL = 0.1
#: Largest number of edges drawn, and of edges with labels.
MAX_EDGES = 200
MAX_LABELS = 12
#: Up to this many edges with a choice, all primitives above `SMALL` are named.
FEW = 3


def graph_picture(edges: Any) -> Picture | None:
    """Draw the edges of a network, or return None if there are none with a choice.

    Parameters
    ----------
    edges
        For every edge the numbers ``start`` and ``end`` of its vertices, the names of its
        ``primitives`` and their posterior mean ``weights``. Anything else is ignored.
    """
    listed = edges if isinstance(edges, list) else []
    shown = [edge for edge in listed if _is_edge(edge)][:MAX_EDGES]
    mixed = [edge for edge in shown if len(edge["weights"]) > 1]
    if not mixed:
        return None
    told = "; ".join(
        f"{edge['start']} to {edge['end']}: {short(_best(edge)[0])} with "
        f"{format_share(_best(edge)[1])}"
        for edge in mixed[:8]
    )
    last = max(edge["end"] for edge in shown)
    height = 190 + 22 * min(last, 12)
    return Picture(
        [panel(lambda axes: paint_graph(axes, shown), alt=f"Graph. {told}.", height=height)],
        "Vertices hold features. Each line is a primitive on an edge, with a width proportional to "
        "its posterior weight; dashed lines have almost no weight. One wide line per edge means a "
        "clear choice; several wide lines mean that the data do not decide, or that a mixture is "
        "better.",
    )


def _is_edge(edge: Any) -> bool:
    """Return whether an entry of a tree is a valid edge."""
    if not isinstance(edge, Mapping):
        return False
    names, weights = edge.get("primitives"), edge.get("weights")
    ends = edge.get("start"), edge.get("end")
    return (
        all(isinstance(end, int) and 0 <= end < 10_000 for end in ends)
        and isinstance(names, list)
        and isinstance(weights, list)
        and len(names) == len(weights) > 0
        and all(isinstance(weight, int | float) and np.isfinite(weight) for weight in weights)
    )


def _best(edge: Mapping[str, Any]) -> tuple[str, float]:
    index = int(np.argmax(edge["weights"]))
    return str(edge["primitives"][index]), float(edge["weights"][index])


def paint_graph(axes: Axes, edges: Sequence[Mapping[str, Any]]) -> None:
    """Draw a graph: vertices from left to right, with the primitives of an edge in parallel."""
    num_mixed = sum(len(edge["weights"]) > 1 for edge in edges)
    tops = [0.0]
    for edge in edges:
        length = edge["end"] - edge["start"]
        weights = np.asarray(edge["weights"], float)
        # Longer edges bend further, on alternating sides, to avoid overlaps.
        swing = (1.0 if length % 2 else -1.0) * 0.85 * (length - 1)
        spread = 0.32 if len(weights) > 1 else 0.0
        heights = swing + np.linspace(spread, -spread, len(weights))
        for name, weight, top in zip(edge["primitives"], weights, heights, strict=True):
            tops.append(float(top))
            at = np.linspace(0, 1, 40)
            x, y = edge["start"] + at * length, top * 4 * at * (1 - at)
            _line(axes, x, y, float(weight), is_choice=len(weights) > 1)
            # With many edges only the largest weight of each is labelled.
            named = weight >= SMALL if num_mixed <= FEW else weight == weights.max()
            if len(weights) > 1 and named and num_mixed <= MAX_LABELS:
                label = short(str(name), 28) if num_mixed <= FEW else short(_brief(name), 18)
                # Crowded neighbours get labels at two heights, away from the vertices.
                lift = 9 * (edge["start"] % 2) if num_mixed > FEW else 0
                side = 1 if top >= 0 else -1
                axes.annotate(
                    f"{label} {weight:.2f}",
                    (edge["start"] + length / 2, top),
                    (0, side * (2 + WIDEST * weight / 2 + lift)),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if top >= 0 else "top",
                    fontsize=9.5 if num_mixed <= FEW else 7,
                    color=INK,
                    zorder=4,
                )
    vertices = range(max(edge["end"] for edge in edges) + 1)
    axes.scatter(vertices, np.zeros(len(vertices)), s=45, color=INK, zorder=3)
    for vertex in vertices:
        axes.annotate(
            str(vertex), (vertex, 0), (0, -7), textcoords="offset points", ha="center", va="top"
        )
    axes.set_xlim(-0.3, len(vertices) - 0.7)
    axes.set_ylim(min(tops) - 0.35, max(tops) + 0.35)
    axes.set_axis_off()


def _brief(name: object) -> str:
    """Return the steps of a primitive without their arguments."""
    return re.sub(r"\([^()]*\)|\s", "", str(name))


def _line(axes: Axes, x: Any, y: Any, weight: float, *, is_choice: bool) -> None:
    width = max(WIDEST * min(max(weight, 0.0), 1.0), 0.7)
    if not is_choice:
        axes.plot(x, y, color=BAND, lw=1.2, zorder=1)
    elif weight < SMALL:
        axes.plot(x, y, color=BAND, lw=0.8, ls=(0, (4, 3)), zorder=1)
    else:
        axes.plot(x, y, color=FIT, lw=width, alpha=0.75, solid_capstyle="butt", zorder=2)
