"""The page that compares several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from zoo.diagnostics.finding import LEVELS
from zoo.diagnostics.robustness import Curve
from zoo.report.figures.differences import difference_picture
from zoo.report.figures.robustness import READING, robustness_picture
from zoo.report.tables import Kind, Table
from zoo.report.templating import render


def render_comparison(
    table: pd.DataFrame,
    differences: Mapping[str, pd.DataFrame] | None = None,
    *,
    robustness: Mapping[str, Sequence[Curve]] | None = None,
    title: str = "Comparison of runs",
    lead: str = "",
) -> str:
    """Return a page that compares runs, in the style of the report.

    Parameters
    ----------
    table
        One row per run, named by the index. Numbers are shown with three digits, and columns of
        levels (``ok``, ``info``, ``warn``, ``fail``) as badges.
    differences
        By name of a score, a frame with one row per run and the columns ``difference`` to a
        reference run and ``error``, the standard error of that difference.
    robustness
        Curves of scores under attack, by name of the run.
    title, lead
        Heading and the sentence below it.
    """
    figures = [difference_picture(name, frame) for name, frame in (differences or {}).items()]
    figures += [robustness_picture(robustness or {}, score) for score in READING]
    return render(
        "comparison.html",
        title=title,
        lead=lead,
        runs=_runs(table),
        figures=[figure for figure in figures if figure is not None],
    )


def _runs(table: pd.DataFrame) -> Table:
    kinds: list[Kind] = ["code", *(_kind(table[column]) for column in table.columns)]
    shown = table.astype(object).where(table.notna(), None)  # the page shows None as a dash
    rows = [[str(name), *cells] for name, *cells in shown.itertuples()]
    return Table("Runs", ["run", *map(str, table.columns)], kinds, rows)


def _kind(column: "pd.Series[Any]") -> Kind:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return "number"
    return "level" if len(column) and column.isin(LEVELS).all() else "text"
