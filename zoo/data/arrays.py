"""Data sets from NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from zoo.data.columns import Array, Column, mean_and_scale
from zoo.data.dataset import Dataset
from zoo.data.schema import Task, as_numbers, check_finite
from zoo.data.targets import Target
from zoo.errors import DataError


def from_arrays(
    X: Any,
    y: Any,
    *,
    X_test: Any = None,
    y_test: Any = None,
    task: Task | None = None,
    feature_names: Sequence[str] | None = None,
    target: str = "y",
    name: str = "arrays",
    standardize: bool = False,
    test_fraction: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """Make a data set from arrays.

    Parameters
    ----------
    X
        Numbers of shape (n, d), or images of shape (n, channels, height, width), which keep their
        shape. float32 is kept; any other type becomes float64.
    y
        Shape (n,): class labels of any kind, numbers or counts.
    X_test, y_test
        Test part. Without it, `test_fraction` of the rows is set aside (none by default).
    task
        The task. If None, it is inferred: text, booleans and integers with at most 20 distinct
        values are classes; other numbers are a regression.
    feature_names
        Names of the columns of X; x0, x1, ... if None.
    target, name
        Names of the target and of the data set.
    standardize
        Whether to centre and scale X, and y in a regression, by the training part.
    test_fraction, seed
        Fraction of test rows and seed of the split.
    """
    X, y = _check_pair(X, y, "X", "y")
    if (X_test is None) != (y_test is None):
        given, lacking = ("X_test", "y_test") if y_test is None else ("y_test", "X_test")
        raise DataError(f"{given} was given without {lacking}; pass both or neither.")
    if X_test is not None and test_fraction:
        raise DataError(
            f"pass either X_test and y_test or test_fraction={test_fraction}, not both."
        )
    rows = np.arange(1, len(y) + 1)
    answer = Target.read(pd.Series(y), name=target, task=task, rows=rows)
    train, test = answer.split(test_fraction, seed)
    if not test_fraction:
        train = np.arange(len(y))
    width = int(np.prod(X.shape[1:]))
    names = _check_names(feature_names, width)
    flat = X.reshape(len(X), width)
    scaling = [
        mean_and_scale(flat[train, i].astype(np.float64), names[i]) if standardize else (0.0, 1.0)
        for i in range(width)
    ]
    channels, height, width = X.shape[1:] if X.ndim == 4 else (0, 0, 0)
    schema = answer.schema(
        tuple(Column(name, "numeric", *pair) for name, pair in zip(names, scaling, strict=True)),
        train,
        standardize=standardize,
        image_shape=(channels, height, width) if X.ndim == 4 else None,
        flat=X.ndim == 2,
        dtype=str(X.dtype),
    )
    encoded, targets = schema.encode_array(X), schema.encode_target(y)
    if X_test is None:
        held_out = encoded[test], targets[test]
    else:
        X_test, y_test = _check_pair(X_test, y_test, "X_test", "y_test")
        if X_test.shape[1:] != X.shape[1:]:
            raise DataError(
                f"X_test has rows of shape {X_test.shape[1:]}, X has rows of shape {X.shape[1:]}."
            )
        held_out = schema.encode_array(X_test), schema.encode_target(y_test)
    return Dataset(name, encoded[train], targets[train], *held_out, schema)


def _check_pair(X: Any, y: Any, X_name: str, y_name: str) -> tuple[Array, Array]:
    """Return inputs and targets as arrays of equal length."""
    X = as_numbers(X, X_name)
    if X.ndim not in (2, 4):
        hint = f" Write {X_name}[:, None] for a single feature." if X.ndim == 1 else ""
        raise DataError(
            f"{X_name} has shape {X.shape}; (n, d) or (n, channels, height, width) is accepted."
            f"{hint}"
        )
    try:
        y = np.asarray(y)
    except ValueError as error:
        raise DataError(f"{y_name} must be a flat array of labels or numbers: {error}.") from error
    if y.ndim != 1:
        raise DataError(f"{y_name} has shape {y.shape}; (n,) is accepted.")
    if len(X) != len(y):
        raise DataError(f"{X_name} has {len(X)} rows and {y_name} has {len(y)}; they must agree.")
    if 0 in X.shape:
        raise DataError(f"{X_name} has shape {X.shape}; at least one row and column are needed.")
    check_finite(X, X_name)
    if np.issubdtype(y.dtype, np.floating):
        check_finite(y, y_name)
    elif pd.isna(y).any():
        raise DataError(f"{y_name} has missing values, the first in row {pd.isna(y).argmax()}.")
    return X, y


def _check_names(feature_names: Sequence[str] | None, width: int) -> list[str]:
    """Return one unique name per feature."""
    names = [f"x{i}" for i in range(width)] if feature_names is None else list(feature_names)
    if len(names) != width or len(set(names)) != width:
        raise DataError(
            f"feature_names must be {width} different names, one per column of X; got "
            f"{len(names)}, {len(set(names))} of them different."
        )
    return names
