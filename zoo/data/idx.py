"""MNIST and Fashion-MNIST from local IDX files, verified by checksum."""

import hashlib
import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from zoo.data.columns import Array, Column
from zoo.data.dataset import Dataset, DatasetInfo
from zoo.data.schema import Schema
from zoo.data.tables import read_content
from zoo.errors import DataError

DATA_VARIABLE = "ZOO_DATA"
PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


def file_name(part: str) -> str:
    """Return the usual file name of one part, without .gz."""
    return f"{part}-idx{3 if part.endswith('images') else 1}-ubyte"


@dataclass(frozen=True)
class IdxSource(DatasetInfo):
    """Location of a data set in IDX format, and the SHA-256 of its decompressed files."""

    folders: tuple[str, ...]
    classes: tuple[str, ...]
    sha256: dict[str, str]


_MNIST = IdxSource(
    name="mnist",
    task="classification",
    num_rows=70_000,
    num_features=784,
    source="LeCun, Cortes, Burges; IDX files in the data folder",
    description="Handwritten digits as 28 x 28 images; pixels are scaled to [-1, 1].",
    folders=("mnist",),
    classes=tuple(str(digit) for digit in range(10)),
    sha256={
        "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
_FASHION_MNIST = IdxSource(
    name="fashion_mnist",
    task="classification",
    num_rows=70_000,
    num_features=784,
    source="Zalando Research; IDX files in the data folder",
    description="Articles of clothing as 28 x 28 images; pixels are scaled to [-1, 1].",
    folders=("fashion-mnist", "fashion_mnist"),
    classes=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    sha256={
        "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)
IDX: dict[str, IdxSource] = {entry.name: entry for entry in (_FASHION_MNIST, _MNIST)}


def parse_idx(content: bytes, path: Path) -> Array:
    """Parse the content of an IDX file of unsigned bytes."""
    dimensions = content[3] if len(content) >= 4 and content[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(content) < start:
        raise DataError(
            f"{str(path)!r} is not an IDX file of unsigned bytes: it starts with "
            f"0x{content[:4].hex() or '(nothing)'}, expected 0x000008 and the number of dimensions."
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(
            f"{str(path)!r} has the wrong length: shape {shape} needs {expected} bytes, "
            f"found {len(content)}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def load_idx(
    name: str, *, data_dir: str | PathLike[str] | None = None, standardize: bool = True
) -> Dataset:
    """Load MNIST or Fashion-MNIST with the official training and test parts.

    `data_dir` holds the folder `mnist` or `fashion-mnist`; the variable ZOO_DATA is used if None.
    Pixels are scaled to [-1, 1]; without `standardize` they range from 0 to 255.
    """
    source = IDX[name]
    folder = _find_folder(source, data_dir)
    train_images, train_labels, test_images, test_labels = (
        _read(folder, part, source.sha256[part]) for part in PARTS
    )
    mean, scale = (127.5, 127.5) if standardize else (0.0, 1.0)
    _, height, width = train_images.shape
    schema = Schema(
        columns=tuple(
            Column(f"pixel_{row}_{column}", "numeric", mean, scale)
            for row in range(height)
            for column in range(width)
        ),
        target="label",
        task="classification",
        classes=source.classes,
        image_shape=(1, height, width),
        dtype="float32",
    )
    levels = ((np.arange(256) - mean) / scale).astype(np.float32)
    return Dataset(
        name,
        levels[train_images.reshape(len(train_images), -1)],
        train_labels.astype(np.int64),
        levels[test_images.reshape(len(test_images), -1)],
        test_labels.astype(np.int64),
        schema,
    )


def _find_folder(source: IdxSource, data_dir: str | PathLike[str] | None) -> Path:
    """Return the folder with all four files, or raise an error that lists the missing ones."""
    root = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    wanted = ", ".join(f"{file_name(part)}[.gz]" for part in PARTS)
    how = (
        f"Put the four files {wanted} into the folder {source.folders[0]!r} of a data folder and "
        f"set {DATA_VARIABLE} (or data_dir) to that data folder."
    )
    if not root:
        raise DataError(f"{source.name}: {DATA_VARIABLE} is not set. {how}")
    folder = next(
        (Path(root, name) for name in source.folders if Path(root, name).is_dir()),
        Path(root, source.folders[0]),
    )
    absent = [file_name(part) for part in PARTS if not any(map(Path.is_file, _paths(folder, part)))]
    if absent:
        raise DataError(f"{source.name}: {str(folder)!r} lacks {', '.join(absent)}. {how}")
    return folder


def _paths(folder: Path, part: str) -> tuple[Path, Path]:
    return folder / file_name(part), folder / f"{file_name(part)}.gz"


def _read(folder: Path, part: str, expected: str) -> Array:
    path = next(path for path in _paths(folder, part) if path.is_file())
    content = read_content(path)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{str(path)!r} is damaged: SHA-256 of its decompressed content is {found}, "
            f"expected {expected}."
        )
    return parse_idx(content, path)
