"""Data sets from data frames: check, split, fit the schema on the training rows, encode."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zoo.data.columns import (
    Array,
    Column,
    Kind,
    Missing,
    check_unique,
    kind_of,
    labels,
    listing,
    numbers,
)
from zoo.data.dataset import Dataset
from zoo.data.schema import MAX_WHOLE, Task
from zoo.data.targets import MAX_CLASSES, Target
from zoo.errors import DataError, did_you_mean

MIN_ROWS = 10
MAX_CATEGORIES = 50  # beyond this, a text column that names most rows is taken for an identifier
MISSING_POLICIES: tuple[Missing, ...] = ("refuse", "impute", "drop")


def from_frame(
    frame: pd.DataFrame,
    target: str,
    *,
    name: str = "table",
    task: Task | None = None,
    ignore: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
    missing: Missing = "refuse",
    standardize: bool = True,
    classes: Sequence[str] | None = None,
    scaling: tuple[float, float] | None = None,
    image_shape: tuple[int, int, int] | None = None,
) -> Dataset:
    """Make a data set from a table.

    Parameters
    ----------
    frame
        One row per observation; columns of numbers, text or booleans.
    target
        Name of the column to predict.
    name
        Name of the data set.
    task
        The task; inferred from the target if None.
    ignore
        Columns to ignore.
    test_fraction, seed
        Fraction of test rows and seed of the split, which is stratified by class.
    missing
        "refuse" raises on missing values; "impute" replaces them by the training median, text by
        a category "missing" (the most frequent one if training has no missing value in that
        column); "drop" removes their rows.
    standardize
        Whether to centre and scale numeric inputs, and the target of a regression.
    classes
        Class names in order of their indices; sorted by default.
    scaling
        Fixed (mean, scale) for all inputs, instead of their standardisation.
    image_shape
        (channels, height, width) if the columns are pixels.
    """
    if missing not in MISSING_POLICIES:
        raise DataError(
            f"missing must be one of {', '.join(map(repr, MISSING_POLICIES))}; got {missing!r}."
        )
    frame = _select(frame, target, ignore)
    kinds = {
        column: kind_of(frame[column], column, is_target=column == target)
        for column in frame.columns
    }
    rows = np.arange(1, len(frame) + 1)
    for column, kind in kinds.items():
        if kind == "numeric":
            numbers(frame[column], column, rows)
    keep = _present_rows(frame, target, missing)
    frame, rows = frame[keep], rows[keep]
    if len(frame) < MIN_ROWS:
        dropped = int((~keep).sum())
        after = f" after dropping {dropped} with missing values" if dropped else ""
        raise DataError(f"{name} has {len(frame)} row(s){after}; at least {MIN_ROWS} are needed.")
    observed = _whole_numbers(frame[target], kinds[target])
    answer = Target.read(observed, name=target, task=task, classes=classes, rows=rows)
    inputs = [column for column in frame.columns if column != target]
    for column in inputs:
        if kinds[column] == "categorical":
            _refuse_identifier(frame[column], column, rows)
    train, test = answer.split(test_fraction, seed)
    columns = tuple(
        Column.fit(
            frame[column].iloc[train],
            kind=kinds[column],
            standardize=standardize and scaling is None,
            impute=missing == "impute",
        )
        for column in inputs
    )
    if scaling is not None and standardize:
        columns = tuple(Column(column.name, "numeric", *scaling) for column in columns)
    schema = answer.schema(
        columns,
        train,
        standardize=standardize,
        image_shape=image_shape if len(inputs) == np.prod(image_shape or 0) else None,
        missing=missing,
    )
    X, y = schema.encode(frame, rows=rows), schema.encode_target(observed, rows=rows)
    return Dataset(name, X[train], y[train], X[test], y[test], schema)


def _select(frame: pd.DataFrame, target: str, ignore: Sequence[str]) -> pd.DataFrame:
    """Return target and inputs; raise errors that no policy for missing values can fix."""
    frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
    names = list(frame.columns)
    check_unique(names)
    if target not in names:
        raise DataError(
            f"there is no target column {target!r}.{did_you_mean(target, names)} "
            f"Columns: {listing(names)}."
        )
    if isinstance(ignore, str):
        raise DataError(f"ignore must be a list of column names; got the text {ignore!r}.")
    for column in ignore:
        if column not in names or column == target:
            what = "is the target" if column == target else "is not a column"
            raise DataError(
                f"ignore: {column!r} {what}.{did_you_mean(column, names)} "
                f"Columns: {listing([name for name in names if name != target])}."
            )
    frame = frame.drop(columns=list(ignore))
    if frame.shape[1] < 2:
        raise DataError(f"there is no input column besides the target {target!r}; one is needed.")
    if frame.empty:
        raise DataError(f"the table has zero rows; at least {MIN_ROWS} are needed.")
    if frame[target].isna().all():
        raise DataError(f"target {target!r} has no value in any of {len(frame)} rows.")
    void = [column for column in frame.columns if frame[column].isna().all()]
    if void:
        raise DataError(
            f"column(s) without any value: {listing(void)}. Leave them out with ignore={void!r}."
        )
    unnamed = [column for column in frame.columns if column.startswith("Unnamed: ")]
    if unnamed:
        raise DataError(
            f"column(s) without a name (a saved row index?): {listing(unnamed)}. "
            f"Name them, or leave them out with ignore={unnamed!r}."
        )
    return frame


def _present_rows(frame: pd.DataFrame, target: str, missing: Missing) -> Array:
    """Return the rows to keep, or raise an error that counts missing values per column."""
    absent = frame.isna()
    if missing == "drop":
        return np.asarray(~absent.to_numpy().any(axis=1))
    if missing == "refuse":
        affected = [column for column in frame.columns if absent[column].any()]
        advice = (
            "Pass missing='impute' (training median; for text a separate category) or "
            "missing='drop' (remove these rows)."
        )
    else:
        affected = [target] if absent[target].any() else []
        advice = "The target is never imputed: pass missing='drop' to remove these rows."
    if affected:
        counts = ", ".join(
            f"{column!r}: {int(absent[column].sum())} (first in data row "
            f"{int(absent[column].to_numpy().argmax()) + 1})"
            for column in affected
        )
        raise DataError(f"missing values in {len(affected)} column(s): {counts}. {advice}")
    return np.ones(len(frame), dtype=bool)


def _whole_numbers(target: pd.Series, kind: Kind) -> pd.Series:
    """Return class numbers stored as floats (0.0, 1.0) as integers."""
    if kind == "numeric" and target.nunique() <= MAX_CLASSES:
        values = target.to_numpy(dtype=np.float64)
        if (values == np.floor(values)).all() and np.abs(values).max() < MAX_WHOLE:
            return pd.Series(values.astype(np.int64), name=target.name)
    return target


def _refuse_identifier(series: pd.Series, name: str, rows: Array) -> None:
    """Reject a text column that has a different value in most rows."""
    distinct = series.nunique()
    if distinct <= MAX_CATEGORIES or 2 * distinct <= len(series):
        return
    texts = pd.Series(labels(series))
    text = pd.to_numeric(texts, errors="coerce").isna().to_numpy() & texts.notna().to_numpy()
    if 2 * text.sum() < len(series):
        at = text.argmax()
        raise DataError(
            f"column {name!r}, data row {rows[at]}: {texts[at]!r} is not a number, unlike most of "
            f"the column; {int(text.sum())} such value(s). Correct them, or leave the column out "
            f"with ignore=[{name!r}]."
        )
    raise DataError(
        f"column {name!r} looks like an identifier: {distinct} different texts in {len(series)} "
        f"rows. Leave it out with ignore=[{name!r}]."
    )
