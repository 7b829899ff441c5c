"""The schema of a data set, which encodes new rows and decodes predictions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pandas as pd

from zoo.data.columns import (
    Array,
    Column,
    Kind,
    Missing,
    check_unique,
    codes_of,
    labels,
    listing,
    numbers,
)
from zoo.errors import DataError

Task: TypeAlias = Literal["classification", "regression", "counts"]
MAX_WHOLE = 2.0**53  # beyond this, float64 does not hold every whole number
TASKS: tuple[Task, ...] = ("classification", "regression", "counts")


@dataclass(frozen=True)
class Schema:
    """Encoding of rows and decoding of predictions, fitted on the training part only.

    Parameters
    ----------
    columns
        The input columns in the order of their features.
    target
        Name of the target column.
    task
        "classification", "regression" or "counts".
    classes
        Class names by class index (classification).
    target_mean, target_scale
        A regression target y is encoded as (y - target_mean) / target_scale.
    image_shape
        (channels, height, width) if the columns are the pixels of an image.
    flat
        Whether encoded rows are vectors; False keeps images as (n, channels, height, width).
    missing
        How missing values in new rows are handled: only "impute" accepts them.
    dtype
        Type of encoded inputs, "float64" or "float32".
    """

    columns: tuple[Column, ...]
    target: str
    task: Task
    classes: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_scale: float = 1.0
    image_shape: tuple[int, int, int] | None = None
    flat: bool = True
    missing: Missing = "refuse"
    dtype: str = "float64"

    @property
    def feature_names(self) -> list[str]:
        """Names of the encoded features, after one-hot encoding."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def num_features(self) -> int:
        """Number of encoded features (pixels, for images)."""
        return len(self.feature_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one encoded row."""
        if self.image_shape is not None and not self.flat:
            return self.image_shape
        return (self.num_features,)

    @property
    def target_kind(self) -> Kind:
        """Whether the target holds class labels or numbers."""
        return "categorical" if self.task == "classification" else "numeric"

    def encode(self, frame: pd.DataFrame, *, rows: Array | None = None) -> Array:
        """Encode the rows of a table to shape (rows, *input_shape); other columns are ignored.

        `rows` are the row numbers for error messages, counted from 1 unless given.
        """
        names = [str(name) for name in frame.columns]
        check_unique(names)
        absent = [column.name for column in self.columns if column.name not in names]
        if absent:
            raise DataError(
                f"the table lacks {len(absent)} of the {len(self.columns)} input columns: "
                f"{listing(absent)}. Columns found: {listing(names)}."
            )
        rows = np.arange(1, len(frame) + 1) if rows is None else rows
        features = [
            column.encode(frame.iloc[:, names.index(column.name)], missing=self.missing, rows=rows)
            for column in self.columns
        ]
        X = np.concatenate(features, axis=1).astype(self.dtype)
        return X.reshape(len(frame), *self.input_shape)

    def encode_array(self, X: Any) -> Array:
        """Encode an array of raw values, one column per input column (numeric inputs only)."""
        if any(column.kind == "categorical" for column in self.columns):
            raise DataError(
                "this data set has categorical columns: pass a DataFrame, not an array."
            )
        values = as_numbers(X, "X")
        accepted = {(len(self.columns),), *([self.image_shape] if self.image_shape else [])}
        if values.shape[1:] not in accepted or values.ndim < 2:
            shapes = " or ".join(
                f"(n, {', '.join(map(str, shape))})" for shape in sorted(accepted, key=len)
            )
            raise DataError(f"X has shape {values.shape}; {shapes} is accepted.")
        check_finite(values, "X")
        mean = np.array([column.mean for column in self.columns])
        scale = np.array([column.scale for column in self.columns])
        flat = (values.reshape(len(values), len(self.columns)) - mean) / scale
        return cast(Array, flat.astype(self.dtype).reshape(len(values), *self.input_shape))

    def encode_target(self, target: "pd.Series | Array", *, rows: Array | None = None) -> Array:
        """Encode target values: class index, standardised number, or count."""
        series = pd.Series(target)
        rows = np.arange(1, len(series) + 1) if rows is None else rows
        absent = series.isna().to_numpy()
        if absent.any():
            raise DataError(
                f"target {self.target!r}, data row {rows[absent.argmax()]}: missing or NaN; "
                f"{int(absent.sum())} in all."
            )
        if self.task == "classification":
            column = f"target {self.target!r}"
            return codes_of(labels(series), self.classes, rows, column=column, what="class")
        values = numbers(series, self.target, rows)
        if self.task == "counts":
            bad = (values < 0) | (values != np.floor(values)) | (values > MAX_WHOLE)
            if bad.any():
                at = bad.argmax()
                raise DataError(
                    f"target {self.target!r}, data row {rows[at]}: {values[at]:g} is not a count; "
                    f"whole numbers from 0 to 2^53 are accepted."
                )
            return values.astype(np.int64)
        return cast(Array, (values - self.target_mean) / self.target_scale)

    def decode_target(self, values: Any) -> Array:
        """Decode targets to class names, original units, or counts."""
        encoded: Array = np.asarray(values)
        if self.task == "classification":
            return np.array(self.classes)[encoded]
        if self.task == "counts":
            return encoded
        return encoded * self.target_scale + self.target_mean

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as JSON-compatible values."""
        return {
            **{
                name: getattr(self, name) for name in ("target", "task", "flat", "missing", "dtype")
            },
            "target_mean": self.target_mean,
            "target_scale": self.target_scale,
            "classes": list(self.classes),
            "image_shape": None if self.image_shape is None else list(self.image_shape),
            "columns": [column.to_dict() for column in self.columns],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Schema":
        """Rebuild a schema from `to_dict`."""
        try:
            shape = plain["image_shape"]
            return cls(
                **{
                    **plain,
                    "columns": tuple(Column.from_dict(column) for column in plain["columns"]),
                    "classes": tuple(plain["classes"]),
                    "image_shape": None if shape is None else tuple(shape),
                }
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"not a data schema: {error}.") from error


def as_numbers(values: Any, name: str) -> Array:
    """Return an array of floats (float32 is kept, other types become float64)."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise TypeError("complex numbers")
        return array if array.dtype == np.float32 else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} must be a rectangular array of numbers; got {type(values).__name__}: {error}."
        ) from error


def check_finite(values: Array, name: str) -> None:
    """Reject NaN and infinity, naming the first row."""
    bad = ~np.isfinite(values.reshape(len(values), -1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise DataError(
            f"{name} has {int(bad.sum())} NaN or infinite value(s), the first in row {row}, "
            f"column {column} (from 0); only finite numbers are accepted."
        )
