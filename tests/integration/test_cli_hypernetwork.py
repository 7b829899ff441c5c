"""``zoo compress --complexity`` as a user runs it."""

import json

import pytest
import torch

import zoo
from zoo.data import load as load_data


@pytest.fixture(scope="module")
def run(tmp_path_factory, command):
    folder = tmp_path_factory.mktemp("hypernetwork")
    outcome = command(
        folder, "fit", "hypernetwork", "--data", "wine", "--net", "mlp:13-8-3", "--num-steps", 400,
        "--num-samples", 8, "--compile", "off", "--quiet", "--out", "run",
    )  # fmt: skip
    assert outcome.finished, outcome
    return folder / "run"


def test_slices_are_plain_networks_and_shrink_with_the_weight(run, command):
    left = {}
    for weight in ("0.001", "100"):
        outcome = command(run.parent, "compress", "run", "--complexity", weight, "--bits", "off")
        assert outcome.code == 0, outcome
        summary = json.loads((run / "compression.json").read_text())
        assert summary["complexity"] == pytest.approx(float(weight), rel=1e-5)
        left[weight] = summary["smaller"]["nonzero_weights"]
        network = zoo.compress.load(run / "compressed")
        x = torch.as_tensor(load_data("wine").X_test, dtype=torch.float32)
        with torch.no_grad():
            accuracy = (network(x).argmax(1).numpy() == load_data("wine").y_test).mean()
        assert accuracy == pytest.approx(summary["packed"]["test"]["accuracy"])
        scores = (
            zoo.load(run)
            .at(float(weight))
            .posterior_scores(load_data("wine").X_test, load_data("wine").y_test)
        )
        assert summary["posterior"]["test"]["nll"] == pytest.approx(scores["nll"], rel=1e-6)
    assert left["100"] < left["0.001"]


def test_without_a_weight_it_is_the_elbo(run, command):
    assert command(run.parent, "compress", "run", "--bits", "off").code == 0
    assert json.loads((run / "compression.json").read_text())["complexity"] == pytest.approx(1.0)


def test_bad_weights_and_other_methods_are_explained(run, wine_run, command):
    outcome = command(run.parent, "compress", "run", "--complexity", "1000")
    assert outcome.code == 2
    assert "between 0.001 and 100" in outcome.err
    outcome = command(run.parent, "compress", wine_run, "--complexity", "0.3")
    assert outcome.code == 2
    assert "Fit 'hypernetwork'" in outcome.err
