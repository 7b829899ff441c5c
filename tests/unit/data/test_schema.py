import json
import math

import numpy as np
import pandas as pd
import pytest

from zoo.data import Column, Schema, from_arrays, from_frame, load
from zoo.data.columns import label, listing, mean_and_scale
from zoo.errors import DataError


@pytest.fixture
def frame():
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "age": rng.normal(40.0, 10.0, 60),
            "colour": rng.choice(["red", "green", "blue"], 60),
            "member": rng.choice([True, False], 60),
            "y": rng.choice(["no", "yes"], 60),
        }
    )


@pytest.fixture
def schema(frame):
    return from_frame(frame, "y").schema


@pytest.mark.parametrize("name", ["digits", "diabetes", "wine", "two_moons"])
def test_json_round_trip_of_named_sets(name):
    schema = load(name).schema
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize("missing", ["refuse", "impute", "drop"])
def test_json_round_trip_of_tables(frame, missing):
    schema = from_frame(frame, "y", missing=missing).schema
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    np.testing.assert_array_equal(again.encode(frame), schema.encode(frame))


def test_json_round_trip_of_images():
    schema = from_arrays(
        np.ones((6, 1, 4, 4)) * np.arange(6)[:, None, None, None], [0, 1] * 3
    ).schema
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    assert again.input_shape == (1, 4, 4)


@pytest.mark.parametrize("plain", [{}, {"columns": 3}, {"bogus": 1}])
def test_a_damaged_schema_is_a_data_error(plain):
    with pytest.raises(DataError, match=r"not a data schema"):
        Schema.from_dict(plain)


def test_a_schema_with_an_unknown_field_is_a_data_error(schema):
    with pytest.raises(DataError, match=r"bogus"):
        Schema.from_dict({**schema.to_dict(), "bogus": 1})


def test_features_are_numbers_then_one_hot(frame, schema):
    assert schema.feature_names == [
        "age",
        "colour=blue",
        "colour=green",
        "colour=red",
        "member=False",
        "member=True",
    ]
    X = schema.encode(frame)
    np.testing.assert_array_equal(X[:, 3], frame["colour"] == "red")
    np.testing.assert_array_equal(X[:, 5], frame["member"])
    np.testing.assert_array_equal(X[:, 1:4].sum(axis=1), 1.0)


def test_encoding_ignores_order_and_extra_columns(frame, schema):
    shuffled = frame[["y", "member", "age", "colour"]].assign(extra=1)
    np.testing.assert_array_equal(schema.encode(shuffled), schema.encode(frame))


def test_encoding_reads_numbers_written_as_text(frame, schema):
    text = frame.assign(age=[repr(float(value)) for value in frame["age"]])
    np.testing.assert_array_equal(schema.encode(text), schema.encode(frame))


def test_zero_rows_encode_to_zero_rows(frame, schema):
    assert schema.encode(frame.iloc[:0]).shape == (0, 6)


def test_missing_input_columns_are_named(frame, schema):
    with pytest.raises(DataError) as caught:
        schema.encode(frame.drop(columns=["age", "member"]))
    assert str(caught.value) == (
        "the table lacks 2 of the 3 input columns: 'age', 'member'. Columns found: 'colour', 'y'."
    )


def test_repeated_columns_are_named(frame, schema):
    with pytest.raises(DataError, match=r"unique; repeated: 'age'"):
        schema.encode(pd.concat([frame, frame[["age"]]], axis=1))


def test_unknown_category_is_named_with_the_accepted_ones(frame, schema):
    frame.loc[7, "colour"] = "gren"
    with pytest.raises(DataError) as caught:
        schema.encode(frame)
    assert str(caught.value) == (
        "column 'colour', data row 8: category 'gren' was not seen in training. "
        "Did you mean 'green'? Accepted: 'blue', 'green', 'red'."
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("abc", "column 'age', data row 3: 'abc' is not a number."),
        ("1_000", "column 'age', data row 3: '1_000' is not a number."),
        (pd.Timestamp("2020-01-01"), "data row 3: '2020-01-01 00:00:00' is not a number."),
        (np.inf, "column 'age', data row 3: inf is not finite"),
        (-np.inf, "column 'age', data row 3: -inf is not finite"),
        (np.nan, "column 'age', data row 3: missing value; 1 in the column"),
        (None, "column 'age', data row 3: missing value; 1 in the column"),
        ([1.0], "column 'age', data row 3: '\\[1.0\\]' is not a number."),
        (1j, "column 'age', data row 3: '1j' is not a number."),
    ],
)
def test_bad_numbers_are_refused_with_column_and_row(frame, schema, value, message):
    ages = frame["age"].astype(object).tolist()
    ages[2] = value
    with pytest.raises(DataError, match=message):
        schema.encode(frame.assign(age=pd.Series(ages, dtype=object)))


@pytest.mark.parametrize("values", [pd.date_range("2020", periods=60), np.full(60, 1j)])
def test_columns_of_another_type_are_refused(frame, schema, values):
    with pytest.raises(DataError, match=r"column 'age', data row 1: .* is not a number"):
        schema.encode(frame.assign(age=values))


def test_missing_category_is_refused_with_column_and_row(frame, schema):
    frame.loc[4, "colour"] = None
    with pytest.raises(DataError, match=r"'colour', data row 5: missing value.*missing='refuse'"):
        schema.encode(frame)


def test_targets_round_trip(frame, schema):
    codes = schema.encode_target(frame["y"])
    assert codes.dtype == np.int64
    assert schema.decode_target(codes).tolist() == frame["y"].tolist()
    regression = load("diabetes").schema
    raw = np.array([100.0, 200.0])
    np.testing.assert_allclose(
        regression.decode_target(regression.encode_target(raw)), raw, rtol=1e-14
    )
    counts = from_arrays([[0.0], [1.0]], [3, 4], task="counts").schema
    assert counts.decode_target(counts.encode_target([7])).tolist() == [7]
    assert counts.target_kind == "numeric"
    assert schema.target_kind == "categorical"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["no", "maybe"], "data row 2: class 'maybe' was not seen.*Accepted: 'no', 'yes'"),
        (["no", None], "data row 2: missing or NaN; 1 in all"),
    ],
)
def test_bad_classes_are_refused(schema, values, message):
    with pytest.raises(DataError, match=message):
        schema.encode_target(pd.Series(values))


def test_arrays_encode_like_tables():
    dataset = load("diabetes", test_fraction=0.0)
    raw = pd.DataFrame(
        np.random.default_rng(0).normal(size=(5, 10)), columns=dataset.schema.feature_names
    )
    np.testing.assert_array_equal(
        dataset.schema.encode_array(raw.to_numpy()), dataset.schema.encode(raw)
    )


def test_arrays_of_images_may_be_flat_or_not():
    schema = load("digits").schema
    pixels = np.arange(64.0).reshape(1, 1, 8, 8) % 17
    flat = schema.encode_array(pixels)
    assert flat.shape == (1, 64)
    np.testing.assert_array_equal(flat, pixels.reshape(1, 64) / 8 - 1)
    with pytest.raises(DataError, match=r"shape \(1, 8, 8\); \(n, 64\) or \(n, 1, 8, 8\) is"):
        schema.encode_array(pixels[0])


def test_arrays_cannot_hold_categories(schema):
    with pytest.raises(DataError, match=r"pass a DataFrame"):
        schema.encode_array(np.zeros((2, 3)))


def test_labels_do_not_depend_on_the_type():
    assert {label(value) for value in (1, 1.0, np.int32(1), np.float64(1.0), "1")} == {"1"}
    assert label(np.float64(0.5)) == "0.5"
    assert label(np.True_) == label(True) == "True"


def test_long_lists_are_cut():
    assert listing([str(i) for i in range(25)]).endswith("'19' and 5 more")


def test_moments_are_exact_and_constant_columns_keep_scale_one():
    values = np.random.default_rng(0).normal(5.0, 2.0, 1000)
    np.testing.assert_allclose(
        mean_and_scale(values, "a"), (values.mean(), values.std()), rtol=1e-14
    )
    assert mean_and_scale(values, "a") == mean_and_scale(values[::-1], "a")
    assert mean_and_scale(np.full(7, 0.1), "a") == (0.1, 1.0)


@pytest.mark.parametrize("size", [1e200, 1e308])
def test_values_too_large_to_standardise_are_refused(size):
    with pytest.raises(DataError, match=r"column 'a' cannot be standardised"):
        mean_and_scale(np.array([size, -size, size, size]), "a")


def test_columns_keep_a_plain_form():
    column = Column("a", "numeric", 1.0, 2.0, impute=0.5)
    assert Column.from_dict(column.to_dict()) == column
    assert math.isclose(
        column.encode(pd.Series([3.0]), missing="refuse", rows=np.array([1]))[0, 0], 1
    )
