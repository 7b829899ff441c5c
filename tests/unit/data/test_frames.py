import decimal

import numpy as np
import pandas as pd
import pytest

from zoo.data import from_frame, load


@pytest.mark.parametrize("seed", range(3))
def test_statistics_come_from_the_training_part_only(frame, seed):
    raw = from_frame(frame, "y", seed=seed, standardize=False)
    scaled = from_frame(frame, "y", seed=seed)
    for i, name in enumerate(("a", "b")):
        column = scaled.schema.columns[i]
        assert column.name == name
        np.testing.assert_allclose(column.mean, raw.X_train[:, i].mean(), rtol=1e-13)
        np.testing.assert_allclose(column.scale, raw.X_train[:, i].std(), rtol=1e-13)
        assert not np.isclose(column.mean, frame[name].mean(), rtol=1e-6)
    np.testing.assert_allclose(scaled.schema.target_mean, raw.y_train.mean(), rtol=1e-13)
    np.testing.assert_allclose(scaled.schema.target_scale, raw.y_train.std(), rtol=1e-13)
    np.testing.assert_allclose(scaled.y_train.mean(), 0, atol=1e-12)


def test_test_rows_cannot_change_the_training_part(frame):
    base = from_frame(frame, "y")
    test = ~np.isin(frame["a"], from_frame(frame, "y", standardize=False).X_train[:, 0])
    other = from_frame(frame.assign(a=frame["a"] + 1e6 * test, y=frame["y"] - 1e6 * test), "y")
    np.testing.assert_array_equal(other.X_train, base.X_train)
    np.testing.assert_array_equal(other.y_train, base.y_train)
    assert other.schema == base.schema
    assert (other.X_test[:, 0] > 1e4).all()


def test_median_is_that_of_the_training_part(frame):
    frame.loc[::7, "a"] = np.nan
    train = from_frame(frame, "y", missing="impute", standardize=False)
    values = np.r_[train.X_train[:, 0], train.X_test[:, 0]]
    median = train.schema.columns[0].impute
    assert (values == median).sum() >= 8
    rows = from_frame(frame.assign(row=np.arange(50.0)), "y", missing="impute", standardize=False)
    chosen = rows.X_train[:, rows.schema.feature_names.index("row")].astype(int)
    assert median == frame["a"].iloc[chosen].median()


def test_constant_columns_have_scale_one(frame):
    dataset = from_frame(frame.assign(a=0.1), "y")
    assert (dataset.schema.columns[0].mean, dataset.schema.columns[0].scale) == (0.1, 1.0)
    assert not dataset.X_train[:, 0].any()


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (np.linspace(0, 1, 50), "regression"),
        (np.arange(50), "regression"),
        (np.arange(50) % 20, "classification"),
        (np.arange(50) % 21, "regression"),
        (np.arange(50) % 2.0, "classification"),
        (np.arange(50) % 2 / 2, "regression"),
        (["no", "yes"] * 25, "classification"),
        ([True, False] * 25, "classification"),
        (pd.Categorical([1.5, 2.5] * 25), "classification"),
        (pd.array([0, 1] * 25, dtype="Int64"), "classification"),
        (pd.array([True, False] * 25, dtype="boolean"), "classification"),
    ],
)
def test_task_is_inferred_from_the_target(frame, values, task):
    assert from_frame(frame.assign(y=values), "y").task == task


@pytest.mark.parametrize("task", ["classification", "regression", "counts"])
def test_a_given_task_wins(frame, task):
    dataset = from_frame(frame.assign(y=np.arange(50) % 4), "y", task=task)
    assert dataset.task == task
    assert dataset.y_train.dtype == (np.float64 if task == "regression" else np.int64)


def test_unusual_column_types_are_numbers_or_categories(frame):
    frame["decimal"] = pd.Series([decimal.Decimal(i) for i in range(50)], dtype=object)
    frame["nullable"] = pd.array(range(50), dtype="Int64")
    frame["mixed"] = pd.Series([1, "x"] * 25, dtype=object)
    frame["category"] = pd.Categorical([3, 4] * 25)
    names = from_frame(frame, "y").schema.feature_names
    assert names[5:] == ["decimal", "nullable", "mixed=1", "mixed=x", "category=3", "category=4"]


def test_missing_values_are_dropped(frame):
    frame.loc[[3, 8], "a"] = np.nan
    frame.loc[5, "y"] = np.nan
    dataset = from_frame(frame, "y", missing="drop")
    assert len(dataset.X_train) + len(dataset.X_test) == 47


def test_missing_values_are_imputed(frame):
    frame.loc[::5, "a"] = np.nan
    frame.loc[::5, "c"] = None
    dataset = from_frame(frame, "y", missing="impute")
    assert "c=missing" in dataset.schema.feature_names
    new = pd.DataFrame({"a": [np.nan], "b": [1], "c": [None]})
    encoded = dataset.schema.encode(new)[0]
    column = dataset.schema.columns[0]
    assert encoded[0] == (column.impute - column.mean) / column.scale
    assert encoded[dataset.schema.feature_names.index("c=missing")] == 1


def test_a_category_never_missing_in_training_is_imputed_by_the_most_frequent(frame):
    dataset = from_frame(frame.assign(c=["u"] * 10 + ["v"] * 40), "y", missing="impute")
    encoded = dataset.schema.encode(pd.DataFrame({"a": [0.0], "b": [1], "c": [None]}))
    assert dataset.schema.feature_names[2:] == ["c=u", "c=v"]
    assert encoded[0, 2:].tolist() == [0.0, 1.0]


def test_class_numbers_with_a_gap_are_still_classes(frame):
    frame["y"] = np.arange(50) % 2.0
    frame.loc[0, "y"] = np.nan
    assert from_frame(frame, "y", missing="drop").schema.classes == ("0", "1")


def test_huge_whole_targets_are_a_regression(frame):
    assert from_frame(frame.assign(y=1e20 * (1 + np.arange(50) % 2)), "y").task == "regression"


def test_the_frame_is_left_alone(frame):
    before = frame.copy()
    from_frame(frame, "y", ignore=["b"], missing="drop")
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_load_reads_files(frame, tmp_path, suffix):
    path = tmp_path / f"houses.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    dataset, expected = load(path, target="y"), from_frame(frame, "y")
    assert dataset.name == "houses"
    np.testing.assert_array_equal(dataset.X_train, expected.X_train)
    assert dataset.schema == expected.schema
