"""Labels and legends of axes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zoo.report.figures.canvas import MAX_NAME, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    Axes = Any  # importing matplotlib takes half a second, and most commands do not plot


def label_rows(axes: Axes, names: Sequence[str], length: int = MAX_NAME) -> None:
    """Name the rows of a plot, the first one on top."""
    axes.set_yticks(range(len(names)), [short(name, length) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def legend_above(axes: Axes) -> None:
    """Place the legend between title and data."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=3, columnspacing=1.4, handlelength=1.6
    )
