"""Read tables from CSV and Parquet files."""

import csv
import gzip
import io
import warnings
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from zoo.data.columns import check_unique
from zoo.errors import DataError, did_you_mean

SUFFIXES = (".csv", ".csv.gz", ".parquet")

# Older versions of pandas round the last bit by default; since 3.1 the option is deprecated.
_READS_EXACTLY = tuple(int(part) for part in pd.__version__.split(".")[:2]) >= (3, 1)


def read_table(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a table from a CSV, gzipped CSV or Parquet file.

    CSV is UTF-8 with a header line, separated by commas, or by semicolons or tabs when the header
    has no comma. Empty cells and the usual marks (NA, NaN, null, ...) are missing values.
    """
    path = Path(path)
    if not path.exists():
        folder = path.parent
        beside = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        raise DataError(f"there is no file {str(path)!r}.{did_you_mean(path.name, beside)}")
    if not path.is_file():
        raise DataError(f"{str(path)!r} is not a file; {', '.join(SUFFIXES)} files are accepted.")
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"unknown format of {str(path)!r}; accepted: {', '.join(SUFFIXES)}.")
    content = read_content(path)
    if not content.strip():
        raise DataError(f"{str(path)!r} is empty; a header line and data rows are needed.")
    frame = _parquet(content, path) if name.endswith(".parquet") else _csv(content, path)
    check_unique(frame.columns, f"{str(path)!r}: ")
    if frame.empty:
        raise DataError(f"{str(path)!r} has zero data rows.")
    return frame


def read_content(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends in .gz."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {str(path)!r}: {_one_line(error)}.") from error


def parse_csv(text: str, *, separator: str = ",") -> pd.DataFrame:
    """Parse CSV text; each number becomes the nearest float64."""
    exact: dict[str, Any] = {} if _READS_EXACTLY else {"float_precision": "round_trip"}
    frame: pd.DataFrame = pd.read_csv(
        io.StringIO(text),
        sep=separator,
        index_col=False,
        skipinitialspace=True,
        low_memory=False,
        **exact,
    )
    return frame


def _csv(content: bytes, path: Path) -> pd.DataFrame:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{str(path)!r} is not UTF-8: byte 0x{content[error.start]:02x} in line {line}. "
            f"Save it as UTF-8."
        ) from error
    if "\0" in text:
        raise DataError(f"{str(path)!r} contains null bytes; it is not a CSV file.")
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = next((mark for mark in ",;\t" if mark in first), ",")
    try:
        reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
        header = next(row for row in reader if row)
        check_unique([cell for cell in header if cell], f"{str(path)!r}: ")
        with warnings.catch_warnings():
            # pandas only warns when it truncates rows that are longer than the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return parse_csv(text, separator=separator)
    except pd.errors.ParserWarning as error:
        raise DataError(f"{str(path)!r}: a data row has more cells than the header.") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as error:
        raise DataError(f"{str(path)!r} is not a valid CSV file: {_one_line(error)}.") from error


def _parquet(content: bytes, path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        # The errors of pyarrow derive from these built-in ones.
        raise DataError(
            f"{str(path)!r} is not a readable Parquet file: {_one_line(error)}."
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
