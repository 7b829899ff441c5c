"""The data a method is fitted on."""

import hashlib
from dataclasses import dataclass

import numpy as np

from zoo.data.columns import Array
from zoo.data.schema import Schema, Task


@dataclass(frozen=True, eq=False)
class Dataset:
    """Encoded training and test data, with the schema that encoded them.

    Parameters
    ----------
    name
        Name of the data set, or the stem of its file.
    X_train, X_test
        Inputs, float of shape (n, d) or (n, channels, height, width).
    y_train, y_test
        Targets: int64 class index, standardised float64, or int64 count.
    schema
        Encodes new rows and decodes predictions.
    """

    name: str
    X_train: Array
    y_train: Array
    X_test: Array
    y_test: Array
    schema: Schema

    @property
    def task(self) -> Task:
        """One of "classification", "regression", "counts"."""
        return self.schema.task

    @property
    def num_features(self) -> int:
        """Number of encoded features (pixels, for images)."""
        return self.schema.num_features

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 unless the task is classification."""
        return len(self.schema.classes)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {self.task}, {len(self.X_train)} training and "
            f"{len(self.X_test)} test rows, {self.num_features} features)"
        )


@dataclass(frozen=True)
class DatasetInfo:
    """Description of a data set, available without loading it."""

    name: str
    task: Task
    num_rows: int
    num_features: int
    source: str
    description: str


def checksum(dataset: Dataset) -> str:
    """Return the SHA-256 of the four arrays: type, shape and little-endian bytes of each."""
    digest = hashlib.sha256()
    for array in (dataset.X_train, dataset.y_train, dataset.X_test, dataset.y_test):
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{plain.dtype.str}{plain.shape}".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()
