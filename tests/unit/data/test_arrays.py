import numpy as np
import pytest

from zoo.data import checksum, from_arrays
from zoo.errors import DataError

X = np.random.default_rng(0).normal(3.0, 2.0, size=(20, 3))
LABELS = np.array(["a", "b"] * 10)


def test_arrays_are_taken_as_they_are():
    dataset = from_arrays(X, X[:, 0])
    np.testing.assert_array_equal(dataset.X_train, X)
    np.testing.assert_array_equal(dataset.y_train, X[:, 0])
    assert dataset.task == "regression"
    assert dataset.X_test.shape == (0, 3)
    assert dataset.schema.feature_names == ["x0", "x1", "x2"]


def test_standardisation_uses_the_training_part_only():
    dataset = from_arrays(X, X[:, 0], X_test=X + 100, y_test=X[:, 0] + 50, standardize=True)
    np.testing.assert_allclose(dataset.X_train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(dataset.X_train.std(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(dataset.X_test, (X + 100 - X.mean(axis=0)) / X.std(axis=0))
    np.testing.assert_allclose(dataset.y_test, (X[:, 0] + 50 - X[:, 0].mean()) / X[:, 0].std())


def test_split_and_stratify():
    dataset = from_arrays(X, LABELS, test_fraction=0.2)
    assert np.bincount(dataset.y_test).tolist() == [2, 2]
    assert dataset.schema.classes == ("a", "b")


@pytest.mark.parametrize(
    ("y", "task", "classes"),
    [
        (LABELS, "classification", ("a", "b")),
        (LABELS == "a", "classification", ("False", "True")),
        (np.tile([10, 9], 10), "classification", ("9", "10")),
        (np.arange(20), "classification", tuple(str(i) for i in range(20))),
        (np.tile([0.0, 1.0], 10), "regression", ()),
        (list(range(20)), "classification", tuple(str(i) for i in range(20))),
    ],
)
def test_task_is_inferred_from_the_type(y, task, classes):
    dataset = from_arrays(X, y)
    assert (dataset.task, dataset.schema.classes) == (task, classes)


def test_many_integers_are_a_regression():
    assert from_arrays(np.zeros((21, 1)), np.arange(21)).task == "regression"


def test_counts_stay_counts():
    dataset = from_arrays(X, np.arange(20.0), task="counts", standardize=True)
    assert dataset.y_train.dtype == np.int64
    assert dataset.y_train.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("dtype", "kept"), [("float32", "float32"), ("float16", "float64"), ("int32", "float64")]
)
def test_float32_is_kept(dtype, kept):
    assert from_arrays(X.astype(dtype), LABELS).X_train.dtype == kept


def test_images_stay_images():
    dataset = from_arrays(np.ones((4, 3, 2, 5)), [0, 1, 0, 1], standardize=True)
    assert dataset.X_train.shape == (4, 3, 2, 5)
    assert dataset.schema.image_shape == (3, 2, 5)
    assert dataset.num_features == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:, 0], LABELS), r"X has shape \(20,\); \(n, d\) or .* Write X\[:, None\]"),
        (
            (X[None], LABELS),
            r"X has shape \(1, 20, 3\); \(n, d\) or \(n, channels, height, width\)",
        ),
        ((X, LABELS[:, None]), r"y has shape \(20, 1\); \(n,\) is accepted"),
        ((X, LABELS[:5]), "X has 20 rows and y has 5; they must agree"),
        ((X[:0], LABELS[:0]), r"X has shape \(0, 3\); at least one row and column"),
        ((X[:, :0], LABELS), r"X has shape \(20, 0\); at least one row and column"),
        ((np.where(X == X[4, 1], np.nan, X), LABELS), "X has 1 NaN .* first in row 4, column 1"),
        ((np.where(X == X[4, 1], np.inf, X), LABELS), "X has 1 NaN or infinite .* row 4, column 1"),
        ((X, np.r_[np.nan, X[1:, 0]]), "y has 1 NaN or infinite .* row 0"),
        ((X, np.array([*["a"] * 19, None])), "y has missing values, the first in row 19"),
        ((LABELS[:, None], LABELS), "X must be a rectangular array of numbers; got ndarray"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "X must be a rectangular array of numbers; got list"),
        ((X + 1j, LABELS), "X must be a rectangular array of numbers; .*complex numbers"),
        ((X[:2], [[1], [2, 3]]), "y must be a flat array of labels or numbers"),
        ((X, ["a"] * 20), "one class only \\('a'\\); classification needs at least 2"),
        ((X, np.ones(20)), r"constant \(1 in all 20 training rows\)"),
    ],
)
def test_unusable_arrays_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        from_arrays(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"X_test": X}, "X_test was given without y_test"),
        ({"y_test": LABELS}, "y_test was given without X_test"),
        ({"X_test": X[:, :2], "y_test": LABELS}, r"X_test has rows of shape \(2,\), X .* \(3,\)"),
        ({"X_test": X, "y_test": ["c"] * 20}, "class 'c' was not seen .*Accepted: 'a', 'b'"),
        (
            {"X_test": X, "y_test": LABELS, "test_fraction": 0.5},
            "either X_test and y_test or test_",
        ),
        ({"feature_names": ["a", "b"]}, "feature_names must be 3 different names.*got 2"),
        ({"feature_names": ["a", "b", "b"]}, "got 3, 2 of them different"),
        ({"task": "regressio"}, "task must be one of .*got 'regressio'. Did you mean 'regression'"),
        ({"task": "regression"}, "holds text or booleans .*task='regression' needs numbers"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, LABELS, **options)


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1"), (1.5, "1.5"), (1e20, r"1e\+20")])
def test_what_is_not_a_count_is_refused(value, shown):
    with pytest.raises(
        DataError, match=f"data row 2: {shown} is not a count; whole numbers from 0 to 2"
    ):
        from_arrays(X[:3], np.array([1.0, value, 2.0]), task="counts")


def test_checksum_sees_values_types_and_shapes():
    base = from_arrays(X, LABELS)
    assert checksum(base) == checksum(from_arrays(np.asfortranarray(X), LABELS))
    others = [
        from_arrays(X + 1e-9, LABELS),
        from_arrays(X, LABELS[::-1]),
        from_arrays(X.astype("float32"), LABELS),
        from_arrays(X.reshape(20, 3, 1, 1), LABELS),
    ]
    assert len({checksum(dataset) for dataset in (base, *others)}) == 5
    assert len(checksum(base)) == 64


def test_repr_says_what_it_is():
    assert repr(from_arrays(X, LABELS)) == (
        "Dataset('arrays', classification, 20 training and 0 test rows, 3 features)"
    )
