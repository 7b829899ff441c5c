"""Load a data set by name or from a file."""

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from zoo.data.columns import Array, Missing
from zoo.data.dataset import Dataset, DatasetInfo
from zoo.data.embedded import EMBEDDED, read_embedded
from zoo.data.frames import from_frame
from zoo.data.idx import IDX, load_idx
from zoo.data.schema import Task
from zoo.data.synthetic import SYNTHETIC, read_synthetic
from zoo.data.tables import read_table
from zoo.errors import DataError, unknown_name

#: The data sets by name.
CATALOG: dict[str, DatasetInfo] = {**EMBEDDED, **SYNTHETIC, **IDX}


def list_datasets() -> list[str]:
    """Return the names of all data sets known to `load`."""
    return sorted(CATALOG)


def describe(name: str) -> DatasetInfo:
    """Return the description of a named data set without loading it."""
    if name not in CATALOG:
        raise unknown_name("data set", name, CATALOG)
    return CATALOG[name]


def truth(name: str) -> dict[str, Array]:
    """Return the parameters that generated a synthetic problem, in original units."""
    if name not in SYNTHETIC:
        raise unknown_name("synthetic data set", name, SYNTHETIC)
    return {key: value.copy() for key, value in SYNTHETIC[name].truth.items()}


def load(
    name_or_path: str | PathLike[str],
    *,
    target: str | None = None,
    task: Task | None = None,
    ignore: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
    missing: Missing = "refuse",
    standardize: bool = True,
    data_dir: str | PathLike[str] | None = None,
) -> Dataset:
    """Load a data set by name, or from a CSV or Parquet file.

    Parameters
    ----------
    name_or_path
        A name from `list_datasets`, or the path of a file.
    target, task
        Target column of a file, and its task, which is inferred if None; a named data set has its
        own.
    ignore, missing, standardize
        See `from_frame`.
    test_fraction, seed
        Fraction of test rows and seed of the split. MNIST and Fashion-MNIST keep their official
        test part.
    data_dir
        Folder of MNIST and Fashion-MNIST; the environment variable ZOO_DATA if None.
    """
    name = fspath(name_or_path)
    entry = EMBEDDED.get(name)
    if name in CATALOG:
        own_target = entry.target if entry else "label" if name in IDX else "y"
        own_task = CATALOG[name].task
        for option, given, own in (("target", target, own_target), ("task", task, own_task)):
            if given not in (None, own):
                raise DataError(f"{option} of data set {name!r} is {own!r}; got {given!r}.")
        target, task = own_target, own_task
    elif not any(mark in name for mark in "/\\.") and not Path(name).exists():
        raise unknown_name("data set", name, CATALOG)
    if name in IDX:
        if ignore:
            raise DataError(f"ignore is for tables; {name!r} consists of images.")
        return load_idx(name, data_dir=data_dir, standardize=standardize)
    read = read_embedded if entry else read_synthetic if name in SYNTHETIC else read_table
    frame = read(name)
    if target is None:
        columns = ", ".join(repr(column) for column in frame.columns)
        raise DataError(f"{name!r} needs target=, the column to predict. Columns: {columns}.")
    return from_frame(
        frame,
        target,
        name=name if name in CATALOG else Path(name).name.split(".")[0],
        task=task,
        ignore=ignore,
        test_fraction=test_fraction,
        seed=seed,
        missing=missing,
        standardize=standardize,
        classes=entry.classes if entry else None,
        scaling=entry.scaling if entry else None,
        image_shape=entry.image_shape if entry else None,
    )
