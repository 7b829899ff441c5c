"""Data sets by name, from table files or from arrays, encoded by a schema stored with each run."""

from zoo.data.arrays import from_arrays
from zoo.data.catalog import describe, list_datasets, load, truth
from zoo.data.columns import Column
from zoo.data.dataset import Dataset, DatasetInfo, checksum
from zoo.data.frames import from_frame
from zoo.data.schema import Schema, Task
from zoo.data.tables import read_table

__all__ = [
    "Column",
    "Dataset",
    "DatasetInfo",
    "Schema",
    "Task",
    "checksum",
    "describe",
    "from_arrays",
    "from_frame",
    "list_datasets",
    "load",
    "read_table",
    "truth",
]
