"""Plot of the ranks of simulation-based calibration."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zoo.diagnostics.sbc import P_WARN, RankTest
from zoo.errors import ConfigError
from zoo.report.figures.axes import Axes
from zoo.report.figures.canvas import BAND, FIT, STYLE, short

#: Histograms per row.
COLUMNS = 3
ENDINGS = (".png", ".svg", ".pdf")


def save_rank_plot(tests: Mapping[str, RankTest], path: Path) -> None:
    """Save a histogram of ranks for each quantity; bars should stay inside the band.

    The band covers 99 % of the counts of a bin if ranks are uniform. Titles have the p-value
    of each quantity alone, and say what ranks mean that are not uniform.
    """
    check_ending(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = -(-len(tests) // COLUMNS)
    with rc_context(STYLE):
        figure = Figure(figsize=(3 * COLUMNS, 2.4 * rows), layout="constrained", facecolor="white")
        grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
        for axes, (name, test) in zip(grid, tests.items(), strict=False):
            _histogram(axes, name, test)
        for axes in grid[len(tests) :]:
            axes.set_axis_off()
        figure.savefig(path, dpi=150)


def check_ending(path: Path) -> None:
    """Refuse a file that cannot be drawn to."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"cannot plot to {str(path)!r}. Accepted endings: {', '.join(ENDINGS)}.")


def _histogram(axes: Axes, name: str, test: RankTest) -> None:
    from scipy.stats import binom

    total = test.num_simulations
    low, high = binom.interval(0.99, total, np.asarray(test.expected) / total)
    edges = np.arange(len(test.counts) + 1) - 0.5
    axes.bar(edges[:-1] + 0.5, test.counts, width=0.9, color=FIT)
    low, high = (np.append(limit, limit[-1]) for limit in (low, high))
    axes.fill_between(edges, low, high, color=BAND, alpha=0.35, step="post", zorder=3)
    shape = f", {test.shape}" if test.p_value < P_WARN else ""
    axes.set_title(f"{short(name)}\np = {test.p_value:.2g}{shape}")
    axes.set_xticks([edges[0], edges[-1]], ["lowest", "highest"])
    axes.set_xlabel("rank of the true value")
