"""``zoo predict``: the numbers of `Fit.predict`, as a table."""

import io

import numpy as np
import pandas as pd
import pytest

import zoo
from zoo.data.embedded import read_embedded
from zoo.data.synthetic import read_synthetic


def table_of(text):
    return pd.read_csv(io.StringIO(text))


def test_classes_are_predicted_by_name_with_probabilities(zoo_here, tmp_path, flowers, flower_run):
    flowers.drop(columns="kind").to_csv(tmp_path / "new.csv", index=False)
    outcome = zoo_here("predict", flower_run, "new.csv")
    assert (outcome.code, outcome.err) == (0, "")
    table = table_of(outcome.out)
    assert list(table.columns) == [
        "prediction",
        "probability of aster",
        "probability of rose",
        "aleatoric entropy",
        "epistemic entropy",
    ]
    expected = zoo.load(flower_run).predict(flowers)
    assert table["prediction"].tolist() == expected.labels
    np.testing.assert_allclose(table.iloc[:, 1:3], expected.probabilities, rtol=1e-12)
    np.testing.assert_allclose(table["epistemic entropy"], expected.epistemic, rtol=1e-12)
    np.testing.assert_allclose(table.iloc[:, 1:3].sum(axis=1), 1.0, rtol=1e-6)


def test_order_of_columns_and_extra_ones_do_not_matter(zoo_here, tmp_path, flowers, flower_run):
    flowers.to_csv(tmp_path / "a.csv", index=False)
    flowers[["kind", "colour", "height"]].assign(note="x").to_csv(tmp_path / "b.csv", index=False)
    assert zoo_here("predict", flower_run, "a.csv") == zoo_here("predict", flower_run, "b.csv")


def test_embedded_classes(zoo_here, tmp_path, wine_run):
    frame = read_embedded("wine")
    frame.to_csv(tmp_path / "wine.csv", index=False)
    table = table_of(zoo_here("predict", wine_run, "wine.csv").out)
    assert table["prediction"].tolist() == zoo.load(wine_run).predict(frame).labels


def test_numbers_are_predicted_with_intervals(zoo_here, tmp_path, linear_run):
    frame = read_synthetic("linear")
    frame.to_csv(tmp_path / "new.csv", index=False)
    wide = table_of(zoo_here("predict", linear_run, "new.csv").out)
    narrow = table_of(zoo_here("predict", linear_run, "new.csv", "--interval", "0.5").out)
    assert list(wide.columns) == [
        "prediction", "sd", "quantile 0.05", "quantile 0.95", "aleatoric sd", "epistemic sd",
    ]  # fmt: skip
    assert (wide["quantile 0.05"] <= narrow["quantile 0.25"]).all()
    assert (wide["quantile 0.95"] >= narrow["quantile 0.75"]).all()
    expected = zoo.load(linear_run).predict(frame)
    np.testing.assert_allclose(wide["prediction"], expected.mean, rtol=1e-12)
    np.testing.assert_allclose(wide["quantile 0.05"], expected.quantile(0.05), rtol=1e-12)
    both = np.hypot(wide["aleatoric sd"], wide["epistemic sd"])
    np.testing.assert_allclose(wide["sd"], both, rtol=1e-6)


def test_predictions_go_to_a_file(zoo_here, tmp_path, flowers, flower_run):
    flowers.to_parquet(tmp_path / "new.parquet")
    shown = zoo_here("predict", flower_run, "new.parquet")
    outcome = zoo_here("predict", flower_run, "new.parquet", "--out", "predicted.csv")
    assert outcome.out == "60 predictions written to predicted.csv\n"
    assert (tmp_path / "predicted.csv").read_text() == shown.out
    assert {path.name for path in tmp_path.iterdir()} == {"new.parquet", "predicted.csv"}


def test_number_of_draws_may_be_chosen(zoo_here, tmp_path, flowers, flower_run):
    flowers.to_csv(tmp_path / "new.csv", index=False)
    table = table_of(zoo_here("predict", flower_run, "new.csv", "--num-samples", "100").out)
    expected = zoo.load(flower_run).predict(flowers, num_samples=100)
    np.testing.assert_allclose(table["probability of rose"], expected.probabilities[:, 1])


@pytest.mark.parametrize("interval", ["0", "1", "1.5", "-0.1", "nan"])
def test_an_interval_is_a_probability(refused, linear_run, interval):
    message = refused("predict", linear_run, "new.csv", "--interval", interval)
    assert "between 0 and 1" in message


def test_a_column_is_missing(refused, tmp_path, flowers, flower_run):
    flowers[["height"]].to_csv(tmp_path / "new.csv", index=False)
    assert "lacks 1 of the 2 input columns: 'colour'" in refused("predict", flower_run, "new.csv")


def test_a_category_was_never_seen(refused, tmp_path, flowers, flower_run):
    flowers.replace("white", "whiet").to_csv(tmp_path / "new.csv", index=False)
    message = refused("predict", flower_run, "new.csv")
    assert "category 'whiet' was not seen" in message
    assert "Did you mean 'white'?" in message


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("height,colour\n1.0,red\n,white\n", "column 'height', data row 2: missing value"),
        ("height,colour\ninf,red\n", "inf is not finite"),
        ("height,colour\ntall,red\n", "'tall' is not a number"),
        ("height,colour\n", "zero data rows"),
        ("height,colour\n1,red,3\n", "more cells than the header"),
        ("", "is empty"),
    ],
)
def test_bad_rows_to_predict(refused, tmp_path, flower_run, text, fragment):
    (tmp_path / "new.csv").write_text(text)
    assert fragment in refused("predict", flower_run, "new.csv")


def test_a_missing_file_to_predict(refused, flower_run):
    assert "there is no file 'new.csv'" in refused("predict", flower_run, "new.csv")


def test_too_few_draws(refused, tmp_path, flowers, flower_run):
    flowers.to_csv(tmp_path / "new.csv", index=False)
    message = refused("predict", flower_run, "new.csv", "--num-samples", "0")
    assert "num_samples must be at least 1" in message


def test_a_place_that_cannot_be_written(refused, tmp_path, flowers, flower_run):
    flowers.to_csv(tmp_path / "new.csv", index=False)
    message = refused("predict", flower_run, "new.csv", "--out", "new.csv/below.csv")
    assert "cannot write 'new.csv/below.csv'" in message
    assert "cannot write" in refused("predict", flower_run, "new.csv", "--out", "none/below.csv")
