"""Data sets that come with the package; see zoo/data/datasets/README.md for origin and licence."""

import gzip
from dataclasses import dataclass
from importlib.resources import files

import pandas as pd

from zoo.data.dataset import DatasetInfo
from zoo.data.tables import parse_csv


@dataclass(frozen=True)
class Embedded(DatasetInfo):
    """A data set stored in the package, with the meaning of its columns."""

    target: str
    classes: tuple[str, ...] | None = None
    scaling: tuple[float, float] | None = None
    image_shape: tuple[int, int, int] | None = None


_ALL = (
    Embedded(
        name="breast_cancer",
        task="classification",
        num_rows=569,
        num_features=30,
        source="UCI, Breast Cancer Wisconsin (Diagnostic)",
        description="Malignant or benign, from measurements of cell nuclei.",
        target="diagnosis",
        classes=("malignant", "benign"),
    ),
    Embedded(
        name="diabetes",
        task="regression",
        num_rows=442,
        num_features=10,
        source="Efron et al. (2004), Least Angle Regression",
        description="Disease progression after one year, from ten baseline measurements.",
        target="progression",
    ),
    Embedded(
        name="digits",
        task="classification",
        num_rows=1797,
        num_features=64,
        source="UCI, Optical Recognition of Handwritten Digits (test part)",
        description="Handwritten digits as 8 x 8 images; pixels are scaled to [-1, 1].",
        target="digit",
        scaling=(8.0, 8.0),  # pixels are 0 to 16
        image_shape=(1, 8, 8),
    ),
    Embedded(
        name="wine",
        task="classification",
        num_rows=178,
        num_features=13,
        source="UCI, Wine",
        description="Three cultivars, from a chemical analysis of the wine.",
        target="cultivar",
    ),
)
EMBEDDED: dict[str, Embedded] = {entry.name: entry for entry in _ALL}


def read_embedded(name: str) -> pd.DataFrame:
    """Return an embedded data set as a table, in original units, the target last."""
    content = (files("zoo.data") / "datasets" / f"{name}.csv.gz").read_bytes()
    return parse_csv(gzip.decompress(content).decode())
