import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from zoo.data import describe, load
from zoo.data import idx as idx_module
from zoo.data.idx import IDX, PARTS, file_name, parse_idx
from zoo.errors import DataError

NAMES = sorted(IDX)


def to_idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def contents():
    rng = np.random.default_rng(0)
    return {
        part: to_idx(
            rng.integers(0, 256, (n, 4, 5), dtype=np.uint8)
            if part.endswith("images")
            else rng.integers(0, 10, n, dtype=np.uint8)
        )
        for part, n in zip(PARTS, (12, 12, 6, 6), strict=True)
    }


@pytest.fixture
def root(tmp_path, contents, monkeypatch):
    """Return a data folder with tiny files whose checksums are the expected ones."""
    sums = {part: hashlib.sha256(content).hexdigest() for part, content in contents.items()}
    for name, source in IDX.items():
        monkeypatch.setitem(idx_module.IDX, name, replace(source, sha256=sums))
        folder = tmp_path / source.folders[0]
        folder.mkdir()
        for part, content in contents.items():
            (folder / f"{file_name(part)}.gz").write_bytes(gzip.compress(content))
    monkeypatch.delenv("ZOO_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_pixels_are_scaled_and_the_official_split_is_kept(root, contents, name):
    dataset = load(name, data_dir=root, seed=5, test_fraction=0.5)
    assert dataset.X_train.shape == (12, 20)
    assert dataset.X_test.shape == (6, 20)
    assert dataset.X_train.dtype == np.float32
    assert dataset.schema.image_shape == (1, 4, 5)
    pixels = np.frombuffer(contents["train-images"][16:], np.uint8).reshape(12, 20)
    np.testing.assert_allclose(dataset.X_train, pixels / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(dataset.schema.encode_array(pixels), dataset.X_train)
    labels = np.frombuffer(contents["t10k-labels"][8:], np.uint8)
    np.testing.assert_array_equal(dataset.y_test, labels)
    assert dataset.y_test.dtype == np.int64


def test_raw_pixels_without_standardisation(root):
    assert load("mnist", data_dir=root, standardize=False).X_train.max() > 200


def test_the_variable_names_the_folder(root, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(root))
    assert len(load("mnist").X_train) == 12


def test_files_may_be_uncompressed(root, contents):
    folder = root / "mnist"
    for part, content in contents.items():
        (folder / f"{file_name(part)}.gz").unlink()
        (folder / file_name(part)).write_bytes(content)
    assert len(load("mnist", data_dir=root).X_test) == 6


def test_the_folder_may_have_an_underscore(root):
    (root / "fashion-mnist").rename(root / "fashion_mnist")
    assert load("fashion_mnist", data_dir=root).schema.classes[9] == "ankle boot"


def test_without_a_folder_the_message_says_what_to_put_where(root):
    with pytest.raises(DataError) as caught:
        load("fashion_mnist")
    assert str(caught.value) == (
        "fashion_mnist: ZOO_DATA is not set. Put the four files train-images-idx3-ubyte[.gz], "
        "train-labels-idx1-ubyte[.gz], t10k-images-idx3-ubyte[.gz], t10k-labels-idx1-ubyte[.gz] "
        "into the folder 'fashion-mnist' of a data folder and set ZOO_DATA (or data_dir) to that "
        "data folder."
    )


def test_lacking_files_are_named(root):
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"mnist' lacks t10k-labels-idx1-ubyte. Put the four files"):
        load("mnist", data_dir=root)
    with pytest.raises(DataError, match=r"nowhere.*lacks train-images-idx3-ubyte, train-labels"):
        load("mnist", data_dir=root / "nowhere")


def test_a_changed_file_is_named_with_both_checksums(root, contents):
    content = bytearray(contents["train-images"])
    content[-1] ^= 1
    path = root / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(content)))
    found = hashlib.sha256(content).hexdigest()
    expected = hashlib.sha256(contents["train-images"]).hexdigest()
    with pytest.raises(DataError) as caught:
        load("mnist", data_dir=root)
    assert str(caught.value) == (
        f"{str(path)!r} is damaged: SHA-256 of its decompressed content is {found}, "
        f"expected {expected}."
    )


def test_compressing_again_does_no_harm(root, contents):
    path = root / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(contents["train-images"], 1, mtime=7))
    assert len(load("mnist", data_dir=root).X_train) == 12


def test_a_cut_gzip_file_is_refused(root):
    path = root / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cannot read '.*train-images-idx3-ubyte.gz'"):
        load("mnist", data_dir=root)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)])
def test_parsing_inverts_writing(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(parse_idx(to_idx(array), Path("f")), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "'f' is not an IDX file of unsigned bytes: it starts with 0x\\(nothing\\)"),
        (b"\0\0\x0d\1\0\0\0\1\0", "starts with 0x00000d01, expected 0x000008"),
        (b"\0\0\x08\3\0\0", "is not an IDX file"),
        (b"\0\0\x08\1\0\0\0\5ab", r"has the wrong length: shape \(5,\) needs 13 bytes, found 10"),
    ],
)
def test_what_is_no_idx_file_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        parse_idx(content, Path("f"))


@pytest.mark.skipif("ZOO_DATA" not in os.environ, reason="ZOO_DATA is not set")
@pytest.mark.parametrize("name", NAMES)
def test_the_real_files(name):
    dataset, info = load(name), describe(name)
    assert len(dataset.X_train) == 60_000
    assert len(dataset.X_train) + len(dataset.X_test) == info.num_rows
    assert dataset.X_train.shape[1] == info.num_features
    assert (dataset.X_train.min(), dataset.X_train.max()) == (-1.0, 1.0)
    mean = {"mnist": 0.1307, "fashion_mnist": 0.2860}[name]
    assert abs((dataset.X_train[:10_000].mean() + 1) / 2 - mean) < 0.003
    assert np.bincount(dataset.y_test).sum() == 10_000
    assert len(set(dataset.y_test.tolist())) == 10
