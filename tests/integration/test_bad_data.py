"""Data that cannot be used end in one line that says why, and leave nothing behind."""

import pytest

ROWS = "".join(f"{i % 7},{i * i % 5},{'ab'[i % 2]}\n" for i in range(30))
GOOD = "u,v,y\n" + ROWS


def fit(refused, *arguments, **options):
    return refused("fit", "mean_field", *arguments, "--num-steps", "3", "--out", "run", **options)


def test_the_good_table_is_accepted(zoo_here, tmp_path):
    (tmp_path / "t.csv").write_text(GOOD)
    outcome = zoo_here(
        "fit", "mean_field", "--data", "t.csv", "--target", "y", "--num-steps", "3", "--out", "run"
    )
    assert outcome.finished, outcome


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (GOOD + "nan,1,a\n", ["missing values", "'u': 1 (first in data row 31)", "impute"]),
        (GOOD + ",1,a\n", ["missing values", "'u': 1 (first in data row 31)"]),
        (GOOD + "inf,1,a\n", ["column 'u', data row 31: inf is not finite"]),
        (GOOD + "1,-inf,a\n", ["column 'v', data row 31: -inf is not finite"]),
        (GOOD + "1,1,\n", ["missing values", "'y': 1 (first in data row 31)"]),
        (GOOD + "1,1,a,4\n", ["'t.csv'", "Expected 3 fields in line 32, saw 4"]),
        ("u,v,y\n1,1,a,4\n" + ROWS, ["'t.csv'", "more cells than the header"]),
        ("u,v,y\n", ["'t.csv' has zero data rows"]),
        ("", ["'t.csv' is empty"]),
        ("u,v,y\n" + "1,2,a\n2,3,a\n" * 10, ["'y' has one class only ('a')"]),
        ("u,v,y\n1,2,a\n2,3,b\n", ["2 row(s)", "at least 10 are needed"]),
        ("u,u,y\n" + ROWS, ["column names must be unique; repeated: 'u'"]),
        ("y\n" + "a\nb\n" * 10, ["no input column", "'y'"]),
        ('u,v,y\n"' + ROWS, ["'t.csv'", "valid CSV"]),
    ],
)
def test_a_bad_table(refused, tmp_path, text, fragments):
    (tmp_path / "t.csv").write_text(text)
    message = fit(refused, "--data", "t.csv", "--target", "y")
    for fragment in fragments:
        assert fragment in message


def test_a_table_that_is_not_text(refused, tmp_path):
    (tmp_path / "t.csv").write_bytes(b"u,v,y\n\xff\xfe,1,2\n")
    assert "'t.csv' is not UTF-8" in fit(refused, "--data", "t.csv", "--target", "y")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["--data", "whine"], ["unknown data set 'whine'", "Did you mean 'wine'?"]),
        (["--data", "missing.csv"], ["there is no file 'missing.csv'"]),
        (["--data", "."], ["'.' is not a file"]),
        (["--data", "t.txt"], ["unknown format of 't.txt'", ".csv"]),
        (["--data", "t.csv"], ["needs target=", "'u', 'v', 'y'"]),
        (["--data", "t.csv", "--target", "z"], ["no target column 'z'", "'u', 'v', 'y'"]),
        (["--data", "t.csv", "--target", "y", "--ignore", "w"], ["ignore: 'w' is not a column"]),
        (["--data", "t.csv", "--target", "y", "--task", "regression"], ["holds text", "'y'"]),
        (["--data", "t.csv", "--target", "y", "--task", "ranking"], ["'task' is not accepted"]),
        (["--data", "t.csv", "--target", "y", "--missing", "guess"], ["'missing' is not accepted"]),
        (["--data", "wine", "--target", "u"], ["target of data set 'wine' is"]),
        (["--data", "wine", "--task", "counts"], ["task of data set 'wine' is 'classification'"]),
        (["--data", "wine", "--test-fraction", "1.0"], ["'test_fraction' is not accepted"]),
        (["--data", "wine", "--validation-fraction", "0.7"], ["at least half must be left"]),
        (["--data", "wine", "--validation-fraction", "1"], ["'validation_fraction' is not acc"]),
    ],
)
def test_a_bad_choice_of_data(refused, tmp_path, arguments, fragments):
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "t.txt").write_text(GOOD)
    message = fit(refused, *arguments)
    for fragment in fragments:
        assert fragment in message


def test_changed_data_do_not_repeat_a_run(zoo_here, refused, tmp_path):
    (tmp_path / "t.csv").write_text(GOOD)
    options = ("--target", "y", "--num-steps", "3", "--num-samples", "5", "--out", "first")
    assert zoo_here("fit", "mean_field", "--data", "t.csv", *options).finished
    (tmp_path / "t.csv").write_text(GOOD.replace("1,1,b", "1,2,b"))
    message = refused("fit", "--config", "first/config.yaml", "--out", "second")
    assert "'t.csv' are not those of the configuration" in message
    assert zoo_here("fit", "--config", "first/config.yaml", "--data", "t.csv").finished


def test_images_that_are_not_there(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    assert "mnist" in fit(refused, "--data", "mnist")
