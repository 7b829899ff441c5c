"""Targets: the task inferred from a target column, and its encoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from zoo.data.columns import Array, Column, kind_of, label, mean_and_scale
from zoo.data.schema import TASKS, Schema, Task
from zoo.data.split import split_rows
from zoo.errors import DataError, did_you_mean

MAX_CLASSES = 20  # an integer target with more distinct values is taken for a quantity


@dataclass(frozen=True)
class Target:
    """A target with its task, checked on all rows.

    ``classes`` are empty unless the task is classification; ``values`` are class indices, counts,
    or numbers in original units.
    """

    name: str
    task: Task
    classes: tuple[str, ...]
    values: Array

    @classmethod
    def read(
        cls,
        series: pd.Series,
        *,
        name: str,
        task: Task | None = None,
        classes: Sequence[str] | None = None,
        rows: Array,
    ) -> "Target":
        """Determine task and classes of a target column without missing values."""
        check_task(task)
        task = task or infer_task(series, name)
        found: tuple[str, ...] = ()
        if task == "classification":
            found = tuple(classes or class_names(series))
            if len(found) < 2:
                raise DataError(
                    f"target {name!r} has one class only ({found[0]!r}); classification needs "
                    f"at least 2."
                )
        elif kind_of(series, name, is_target=True) == "categorical":
            raise DataError(
                f"target {name!r} holds text or booleans (first: {label(series.iloc[0])!r}), but "
                f"task={task!r} needs numbers. Use task='classification'."
            )
        values = Schema((), name, task, found).encode_target(series, rows=rows)
        return cls(name, task, found, values)

    def split(self, test_fraction: float, seed: int) -> tuple[Array, Array]:
        """Return shuffled training and test row indices, stratified by class."""
        return split_rows(
            len(self.values),
            test_fraction=test_fraction,
            seed=seed,
            strata=self.values if self.task == "classification" else None,
            names=self.classes,
        )

    def schema(
        self, columns: tuple[Column, ...], train: Array, *, standardize: bool, **options: Any
    ) -> Schema:
        """Return the schema of a data set; a regression target is scaled by the training rows."""
        mean, scale = 0.0, 1.0
        if self.task == "regression":
            values = self.values[train]
            if values.min() == values.max():
                raise DataError(
                    f"target {self.name!r} is constant ({values[0]:g} in all {len(values)} "
                    f"training rows); regression needs values that differ."
                )
            if standardize:
                mean, scale = mean_and_scale(values, self.name)
        return Schema(columns, self.name, self.task, self.classes, mean, scale, **options)


def check_task(task: str | None) -> None:
    """Reject an unknown task."""
    if task is not None and task not in TASKS:
        raise DataError(
            f"task must be one of {', '.join(map(repr, TASKS))}; got {task!r}."
            f"{did_you_mean(str(task), TASKS)}"
        )


def infer_task(series: pd.Series, name: str) -> Task:
    """Infer the task from a target.

    Text, booleans and integers with at most 20 distinct values are classes; everything else is
    regression. Counts are never inferred.
    """
    if kind_of(series, name, is_target=True) == "categorical":
        return "classification"
    if pd.api.types.is_integer_dtype(series.dtype) and series.nunique() <= MAX_CLASSES:
        return "classification"
    return "regression"


def class_names(series: pd.Series) -> tuple[str, ...]:
    """Return class names in the order of their indices: numbers by value, text alphabetically."""
    distinct = series.dropna().drop_duplicates().astype(object).tolist()
    try:
        ordered = sorted(distinct)
    except TypeError:  # numbers and text together
        ordered = sorted(distinct, key=label)
    return tuple(dict.fromkeys(label(value) for value in ordered))
