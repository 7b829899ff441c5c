"""Encoding of one column of a table, fitted on the training rows."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from zoo.errors import DataError, did_you_mean

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = Literal["numeric", "categorical"]
Missing: TypeAlias = Literal["refuse", "impute", "drop"]

MISSING_CATEGORY = "missing"
MAX_LISTED = 20  # names listed in an error message before it says "and 12 more"

_NUMBER_OBJECTS = {"integer", "floating", "mixed-integer-float", "decimal", "integer-na"}
_LABEL_OBJECTS = {"string", "boolean", "mixed-integer", "mixed", "empty"}


def listing(names: Sequence[str]) -> str:
    """Join names for an error message and shorten a long list."""
    if not names:
        return "none"
    shown = ", ".join(repr(name) for name in names[:MAX_LISTED])
    hidden = len(names) - MAX_LISTED
    return f"{shown} and {hidden} more" if hidden > 0 else shown


def check_unique(names: Iterable[Any], where: str = "") -> None:
    """Reject repeated column names; `where` starts the message."""
    repeated = sorted(name for name, count in Counter(map(str, names)).items() if count > 1)
    if repeated:
        raise DataError(f"{where}column names must be unique; repeated: {listing(repeated)}.")


def codes_of(texts: Array, known: tuple[str, ...], rows: Array, *, column: str, what: str) -> Array:
    """Return the index of every text among the known ones; reject other texts."""
    codes = pd.Index(known, dtype=object).get_indexer(pd.Index(texts, dtype=object))
    if (codes < 0).any():
        at = int((codes < 0).argmax())
        raise DataError(
            f"{column}, data row {rows[at]}: {what} {texts[at]!r} was not seen in training."
            f"{did_you_mean(texts[at], known)} Accepted: {listing(known)}."
        )
    return cast(Array, codes.astype(np.int64))


def kind_of(series: pd.Series, name: str, *, is_target: bool = False) -> Kind:
    """Return whether a column holds numbers or labels; raise an error for other types."""
    dtype = series.dtype
    what = str(dtype)
    if pd.api.types.is_bool_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype):
        return "categorical"
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return "numeric"
    if pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype):
        held = pd.api.types.infer_dtype(series, skipna=True)
        if held in _NUMBER_OBJECTS:
            return "numeric"
        if held in _LABEL_OBJECTS and all(pd.api.types.is_scalar(v) for v in series):
            return "categorical"
        what = held if held not in _LABEL_OBJECTS else "nested"
    where = f"target {name!r}" if is_target else f"column {name!r}"
    hint = "" if is_target else f", or leave it out with ignore=[{name!r}]"
    raise DataError(
        f"{where} holds {what} values; numbers, text and booleans are accepted. Convert it{hint}."
    )


def numbers(series: pd.Series, name: str, rows: Array) -> Array:
    """Return a column as float64 with NaN for missing values; reject text, dates and infinity.

    `rows` are the row numbers for error messages (from 1, without the header).
    """
    if pd.api.types.is_datetime64_any_dtype(series.dtype) or isinstance(
        series.dtype, pd.CategoricalDtype
    ):
        series = series.astype(object)
    if pd.api.types.is_numeric_dtype(series.dtype) and series.dtype.kind != "c":
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        values = np.array([_number(value) for value in series], dtype=np.float64)
        unreadable = np.flatnonzero(np.isnan(values) & series.notna().to_numpy())
        if unreadable.size:
            at = unreadable[0]
            raise DataError(
                f"column {name!r}, data row {rows[at]}: {str(series.iloc[at])!r} is not a number."
            )
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        at = infinite[0]
        raise DataError(
            f"column {name!r}, data row {rows[at]}: {values[at]} is not finite; "
            f"{infinite.size} such value(s) in the column, only finite numbers are accepted."
        )
    return values


def _number(value: Any) -> float:
    try:
        # Python parses "1_000" as a number, but in a data file it is not one.
        return math.nan if isinstance(value, str) and "_" in value else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def label(value: Any) -> str:
    """Return the text of one category, the same for 1, 1.0 and "1"."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, np.generic):
        return str(value.item())
    return str(value)


def labels(series: pd.Series) -> Array:
    """Return a column as an array of text, with None for missing values."""
    codes, values = pd.factorize(series.astype(object))
    texts = np.array([*(label(value) for value in values), None], dtype=object)
    return texts[codes]  # the code of a missing value is -1


def mean_and_scale(values: Array, name: str) -> tuple[float, float]:
    """Return mean and standard deviation, the latter 1 for a constant column.

    Sums are exactly rounded (`math.fsum`), so the result is bitwise the same on every machine.
    """
    if values.min() == values.max():
        return float(values[0]), 1.0
    try:
        mean = math.fsum(values) / values.size
        with np.errstate(over="ignore"):
            variance = math.fsum((values - mean) ** 2) / values.size
    except OverflowError:
        variance = math.inf
    if not math.isfinite(variance):
        raise DataError(
            f"column {name!r} cannot be standardised: its values reach "
            f"{np.abs(values).max():.3g}; rescale it to below 1e150."
        )
    return mean, math.sqrt(variance) or 1.0


@dataclass(frozen=True)
class Column:
    """Encoding of one input column, fitted on the training part.

    Parameters
    ----------
    name
        Name of the column in the table.
    kind
        "numeric" gives one feature, "categorical" one feature per category (one-hot).
    mean, scale
        A number x is encoded as (x - mean) / scale.
    categories
        The categories seen in training, in the order of their features.
    impute
        Replacement for missing values if the schema imputes.
    """

    name: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    impute: float | str | None = None

    @classmethod
    def fit(cls, series: pd.Series, *, kind: Kind, standardize: bool, impute: bool) -> "Column":
        """Fit a column to its training rows."""
        name = str(series.name)
        rows = np.arange(1, len(series) + 1)
        if kind == "categorical":
            seen = labels(series)
            texts, counts = np.unique(seen[~pd.isna(seen)].astype(str), return_counts=True)
            categories, fill = set(texts.tolist()), None
            if impute and len(series) > counts.sum():
                fill = MISSING_CATEGORY
                categories.add(fill)
            elif impute and texts.size:
                fill = str(texts[counts.argmax()])
            return cls(name, kind, categories=tuple(sorted(categories)), impute=fill)
        values = numbers(series, name, rows)
        known = values[~np.isnan(values)]
        if not known.size:
            raise DataError(
                f"column {name!r} has no value in the training part; "
                f"leave it out with ignore=[{name!r}]."
            )
        median = float(np.median(known)) if impute else None
        if median is not None:
            known = np.where(np.isnan(values), median, values)
        mean, scale = mean_and_scale(known, name) if standardize else (0.0, 1.0)
        return cls(name, kind, mean, scale, impute=median)

    @property
    def feature_names(self) -> list[str]:
        """Names of the features of this column."""
        if self.kind == "numeric":
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]

    def encode(self, series: pd.Series, *, missing: Missing, rows: Array) -> Array:
        """Return the features of this column, float64 of shape (rows, features)."""
        if self.kind == "numeric":
            values = numbers(series, self.name, rows)
            values = self._fill(values, np.isnan(values), missing, rows)
            return cast(Array, ((values - self.mean) / self.scale)[:, None])
        texts = labels(series)
        texts = self._fill(texts, pd.isna(texts), missing, rows)
        column = f"column {self.name!r}"
        codes = codes_of(texts, self.categories, rows, column=column, what="category")
        return cast(Array, np.eye(len(self.categories))[codes])

    def _fill(self, values: Array, absent: Array, missing: Missing, rows: Array) -> Array:
        if not absent.any():
            return values
        if missing == "impute" and self.impute is not None:
            return np.where(absent, np.array(self.impute, dtype=values.dtype), values)
        raise DataError(
            f"column {self.name!r}, data row {rows[absent.argmax()]}: missing value; "
            f"{int(absent.sum())} in the column, and this data set was loaded with "
            f"missing={missing!r}. Fill them in, or load with missing='impute'."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the column as JSON-compatible values."""
        if self.kind == "categorical":
            plain: dict[str, Any] = {"categories": list(self.categories)}
        else:
            plain = {"mean": self.mean, "scale": self.scale}
        return {"name": self.name, "kind": self.kind, **plain, "impute": self.impute}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Column":
        """Rebuild a column from `to_dict`."""
        return cls(**{**plain, "categories": tuple(plain.get("categories", ()))})
