import numpy as np
import pytest

from zoo.data import describe, load
from zoo.data.embedded import EMBEDDED, read_embedded
from zoo.errors import DataError


@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_values_equal_those_of_scikit_learn(name):
    datasets = pytest.importorskip("sklearn.datasets")
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(**options)
    frame = read_embedded(name)
    np.testing.assert_array_equal(frame.iloc[:, :-1].to_numpy(dtype=float), bunch.data)
    dataset = load(name, test_fraction=0.0, standardize=False)
    order = np.random.Generator(np.random.PCG64(0)).random(len(frame)).argsort(kind="stable")
    np.testing.assert_array_equal(dataset.X_train, bunch.data[order])
    np.testing.assert_array_equal(dataset.y_train, bunch.target[order])
    assert list(frame.columns[:-1]) == [text.replace(" ", "_") for text in bunch.feature_names]
    if hasattr(bunch, "target_names"):
        assert dataset.schema.classes == tuple(str(text) for text in bunch.target_names)


@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_information_is_true(name):
    dataset, info = load(name), describe(name)
    assert len(dataset.X_train) + len(dataset.X_test) == info.num_rows
    assert dataset.num_features == info.num_features == dataset.X_train.shape[1]
    assert dataset.task == info.task
    assert dataset.schema.target == EMBEDDED[name].target
    assert dataset.X_train.dtype == np.float64
    assert dataset.y_train.dtype == (np.float64 if info.task == "regression" else np.int64)


def test_digits_are_flat_pixels_between_minus_one_and_one():
    dataset = load("digits")
    assert dataset.X_train.shape[1:] == (64,)
    assert dataset.schema.image_shape == (1, 8, 8)
    assert (dataset.X_train.min(), dataset.X_train.max()) == (-1.0, 1.0)
    assert np.isin(dataset.X_train * 8 + 8, np.arange(17)).all()


def test_digits_without_some_pixels_are_no_images():
    dataset = load("digits", ignore=["pixel_0_0"])
    assert dataset.num_features == 63
    assert dataset.schema.image_shape is None


def test_raw_pixels_without_standardisation():
    assert load("digits", standardize=False).X_train.max() == 16.0


def test_class_order_of_breast_cancer():
    dataset = load("breast_cancer")
    assert dataset.schema.classes == ("malignant", "benign")
    assert np.bincount(np.r_[dataset.y_train, dataset.y_test]).tolist() == [212, 357]


def test_own_target_and_task_cannot_be_changed():
    assert load("wine", target="cultivar", task="classification").num_classes == 3
    with pytest.raises(DataError, match=r"target of data set 'wine' is 'cultivar'; got 'ash'"):
        load("wine", target="ash")
    with pytest.raises(
        DataError, match=r"task of data set 'wine' is 'classification'; got 'counts'"
    ):
        load("wine", task="counts")


def test_all_files_together_are_small():
    from importlib.resources import files

    folder = files("zoo.data") / "datasets"
    assert sum(len(entry.read_bytes()) for entry in folder.iterdir()) < 200_000
