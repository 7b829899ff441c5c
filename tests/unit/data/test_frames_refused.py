import numpy as np
import pandas as pd
import pytest

from zoo.data import from_frame
from zoo.errors import DataError


def refused(frame, target="y", **options):
    """Return the message of the error that a table causes; it must be one line."""
    with pytest.raises(DataError) as caught:
        from_frame(frame, target, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "held"),
    [
        (pd.date_range("2020", periods=50), "datetime64"),
        (pd.to_timedelta(range(50), unit="s"), "timedelta64"),
        (np.full(50, 1j), "complex128"),
        (pd.Series([[1, 2]] * 50), "nested"),
        (pd.Series([b"x"] * 50), "bytes"),
    ],
)
def test_other_types_are_refused_with_a_way_out(frame, values, held):
    message = refused(frame.assign(a=values))
    assert message.startswith(f"column 'a' holds {held}")
    assert message.endswith("leave it out with ignore=['a'].")
    assert from_frame(frame.assign(a=values), "y", ignore=["a"]).num_features == 4


def test_missing_values_are_refused_with_counts(frame):
    frame.loc[[3, 8], "a"] = np.nan
    frame.loc[5, "c"] = None
    assert refused(frame) == (
        "missing values in 2 column(s): 'a': 2 (first in data row 4), 'c': 1 (first in data row "
        "6). Pass missing='impute' (training median; for text a separate category) or "
        "missing='drop' (remove these rows)."
    )


@pytest.mark.parametrize("missing", ["refuse", "impute"])
def test_a_missing_target_is_refused_unless_dropped(frame, missing):
    frame.loc[9, "y"] = np.nan
    message = refused(frame, missing=missing)
    assert "'y': 1 (first in data row 10)" in message
    assert "missing='drop'" in message


@pytest.mark.parametrize("column", ["a", "y"])
@pytest.mark.parametrize("missing", ["refuse", "impute", "drop"])
def test_infinity_is_refused_with_column_and_row(frame, column, missing):
    frame.loc[[6, 7], column] = -np.inf
    assert refused(frame, missing=missing) == (
        f"column {column!r}, data row 7: -inf is not finite; 2 such value(s) in the column, only "
        "finite numbers are accepted."
    )


def test_target_must_exist(frame):
    message = refused(frame.rename(columns={"y": "price"}), "prise")
    assert message == (
        "there is no target column 'prise'. Did you mean 'price'? Columns: 'a', 'b', 'c', 'price'."
    )


def test_the_target_of_another_type_cannot_be_left_out(frame):
    assert refused(frame.assign(y=pd.date_range("2020", periods=50))).endswith("Convert it.")


def test_a_target_without_any_value(frame):
    assert refused(frame.assign(y=np.nan), missing="drop") == (
        "target 'y' has no value in any of 50 rows."
    )


def test_an_empty_table():
    assert refused(pd.DataFrame()) == "there is no target column 'y'. Columns: none."


def test_zero_rows(frame):
    assert refused(frame.iloc[:0]) == "the table has zero rows; at least 10 are needed."


def test_too_few_rows(frame):
    assert refused(frame.iloc[:9], name="t") == "t has 9 row(s); at least 10 are needed."
    frame.loc[5:, "a"] = np.nan
    assert refused(frame, missing="drop", name="t") == (
        "t has 5 row(s) after dropping 45 with missing values; at least 10 are needed."
    )


def test_one_class_only(frame):
    assert refused(frame.assign(y="no")) == (
        "target 'y' has one class only ('no'); classification needs at least 2."
    )


def test_a_class_that_is_not_among_the_given_ones(frame):
    message = refused(frame.assign(y=["no", "maybe"] * 25), classes=("no", "yes"))
    assert message.startswith("target 'y', data row 2: class 'maybe' was not seen in training.")


def test_a_class_with_one_row(frame):
    assert "class(es) with a single row: 'rare'" in refused(frame.assign(y=["x"] * 49 + ["rare"]))


def test_constant_target(frame):
    assert refused(frame.assign(y=2.5)) == (
        "target 'y' is constant (2.5 in all 40 training rows); regression needs values that differ."
    )


def test_repeated_column_names(frame):
    message = refused(pd.concat([frame, frame[["a"]]], axis=1))
    assert message == "column names must be unique; repeated: 'a'."


def test_a_column_without_any_value(frame):
    for missing in ("refuse", "impute", "drop"):
        assert refused(frame.assign(a=np.nan), missing=missing) == (
            "column(s) without any value: 'a'. Leave them out with ignore=['a']."
        )


def test_a_column_without_any_value_in_training(frame):
    test = ~np.isin(frame["a"], from_frame(frame, "y", standardize=False).X_train[:, 0])
    message = refused(frame.assign(b=np.where(test, 1.0, np.nan)), missing="impute")
    assert message.startswith("column 'b' has no value in the training part")


def test_a_column_without_a_name(frame):
    message = refused(frame.assign(**{"Unnamed: 0": range(50)}))
    assert "without a name (a saved row index?): 'Unnamed: 0'" in message


def test_an_identifier_is_refused():
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(60)], "a": range(60), "y": range(60)})
    assert refused(frame) == (
        "column 'id' looks like an identifier: 60 different texts in 60 rows. "
        "Leave it out with ignore=['id']."
    )
    assert from_frame(frame, "y", ignore=["id"]).schema.feature_names == ["a"]


def test_a_stray_text_in_a_numeric_column_is_named():
    values = [str(i) for i in range(60)]
    values[30] = "?"
    message = refused(pd.DataFrame({"a": values, "y": np.arange(60.0)}))
    assert message.startswith("column 'a', data row 31: '?' is not a number, unlike most of")


def test_a_category_only_in_the_test_part_is_named(frame):
    test = ~np.isin(frame["a"], from_frame(frame, "y", standardize=False).X_train[:, 0])
    frame.loc[np.flatnonzero(test)[0], "c"] = "rare"
    message = refused(frame)
    assert "category 'rare' was not seen in training. Accepted: 'u', 'v', 'w'." in message


@pytest.mark.parametrize(("value", "shown"), [(-1, "-1"), (0.5, "0.5")])
def test_counts_must_be_counts(frame, value, shown):
    counts = np.arange(50.0)
    counts[3] = value
    assert refused(frame.assign(y=counts), task="counts") == (
        f"target 'y', data row 4: {shown} is not a count; "
        "whole numbers from 0 to 2^53 are accepted."
    )


def test_text_cannot_be_a_regression(frame):
    message = refused(frame, "c", task="regression")
    assert "task='regression' needs numbers. Use task='classification'." in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "ignore"}, "missing must be one of 'refuse', 'impute', 'drop'; got 'ignore'."),
        ({"task": "ranking"}, "task must be one of 'classification', 'regression', 'counts'; got"),
        ({"ignore": ["x"]}, "ignore: 'x' is not a column. Columns: 'a', 'b', 'c'."),
        ({"ignore": ["y"]}, "ignore: 'y' is the target."),
        ({"ignore": "a"}, "ignore must be a list of column names; got the text 'a'."),
        ({"ignore": ["a", "b", "c"]}, "there is no input column besides the target 'y'"),
    ],
)
def test_options_that_do_not_fit_are_refused(frame, options, message):
    assert message in refused(frame, **options)


def test_row_numbers_survive_dropped_rows(frame):
    frame.loc[:4, "a"] = np.nan
    counts = np.arange(50.0)
    counts[20] = -2
    assert "data row 21: -2" in refused(frame.assign(y=counts), task="counts", missing="drop")
