"""From a fit with a codebook to the quantized network, its scores and the finding about them."""

import json

import numpy as np
import pytest
import torch
import xarray
from torch import nn

import zoo
from zoo.data import load
from zoo.diagnostics import diagnose, quantization_findings
from zoo.errors import ConfigError
from zoo.infer.pruning.codebooks import quantized_view


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return zoo.fit(
        "quantized",
        data="wine",
        net="mlp:13-8-3",
        num_steps=150,
        num_samples=10,
        out=folder,
        progress_bar=False,
    )


def test_the_quantized_network_has_code_words_for_weights_and_means_for_biases(fit):
    net = fit.quantize()
    view = quantized_view(fit.assembly.model, fit.assembly.guide)
    medians = fit.assembly.guide.medians()
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            words = view.codebooks[name]
            assert len(words) == 3
            distance = (parameter.detach().unsqueeze(-1) - words).abs().amin(-1)
            assert distance.max() <= 1e-6 * words.max()
            part = fit.assembly.guide[name]
            assert torch.equal(parameter, fit.assembly.model.prior(name).quantized(part))
        else:
            assert torch.equal(parameter, medians[name])
    assert not net.training
    # The model of the fit is left alone.
    assert not torch.equal(net[0].weight, fit.assembly.model.net[0].weight)


def test_metrics_hold_the_scores_of_the_network_that_is_returned(fit):
    dataset = load("wine")
    metrics = json.loads((fit.path / "metrics.json").read_text())
    with torch.no_grad():
        logits = fit.quantize()(torch.as_tensor(dataset.X_test, dtype=torch.float32))
    accuracy = float((logits.argmax(-1).numpy() == dataset.y_test).mean())
    assert metrics["test.quantized.accuracy"] == pytest.approx(accuracy)
    rows = torch.as_tensor(dataset.y_test, dtype=torch.int64)
    nll = float(nn.functional.cross_entropy(logits, rows))
    assert metrics["test.quantized.nll"] == pytest.approx(nll, rel=1e-5)
    assert {"test.mean.accuracy", "nonzero_percent"} <= set(metrics)
    assert metrics["bits_per_weight"] == 2
    report = (fit.path / "report.html").read_text()
    assert "test rows, quantized" in report


def test_share_of_weights_that_are_not_zero(fit):
    view = quantized_view(fit.assembly.model, fit.assembly.guide)
    weights = torch.cat([code.flatten() for code in view.codes.values()])
    assert view.nonzero_percent == pytest.approx(100 * float((weights != 0).double().mean()))
    assert set(view.codebooks) == {"0.weight", "2.weight"}


def test_a_loaded_fit_quantizes_to_the_same_network(fit):
    loaded = zoo.load(fit.path).quantize()
    for first, second in zip(fit.quantize().parameters(), loaded.parameters(), strict=True):
        assert torch.equal(first, second)


def test_another_codebook_is_one_prior_away():
    fit = zoo.fit(
        "mean_field",
        data="wine",
        net="mlp:13-8-3",
        num_steps=20,
        num_samples=5,
        priors={"0.weight": "Quantized([-0.5, -0.25, 0, 0.25, 0.5])"},
        progress_bar=False,
    )
    net = fit.quantize()
    words = torch.tensor([-0.5, -0.25, 0, 0.25, 0.5])
    assert torch.isin(net[0].weight.detach(), words).all()
    assert not torch.isin(net[2].weight.detach(), words).all()
    dataset = load("wine")
    metrics = fit.metrics(dataset, fit.groups(dataset))
    assert metrics["bits_per_weight"] == 3


def test_a_regression_is_scored_without_a_spread():
    fit = zoo.fit(
        "quantized",
        data="diabetes",
        net="mlp:10-4-1",
        num_steps=40,
        num_samples=5,
        progress_bar=False,
    )
    dataset = load("diabetes")
    metrics = fit.metrics(dataset, fit.groups(dataset))
    assert {"test.quantized.rmse", "test.quantized.nll"} <= set(metrics)
    assert "test.quantized.crps" not in metrics
    findings = {f.check: f for f in diagnose(fit.tree(dataset))}
    assert "root mean squared error" in findings["compression.quantized"].message


def test_batch_normalisation_has_statistics_of_the_quantized_network():
    net = nn.Sequential(nn.Linear(13, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    fit = zoo.fit(
        "quantized", data="wine", net=net, num_steps=60, num_samples=5, progress_bar=False
    )
    dataset = load("wine")
    metrics = fit.metrics(dataset, fit.groups(dataset))
    assert np.isfinite(metrics["test.quantized.nll"])


def test_a_fit_without_a_codebook_cannot_be_quantized():
    fit = zoo.fit("mean_field", data="wine", num_steps=5, num_samples=5, progress_bar=False)
    with pytest.raises(ConfigError, match="no weight of this fit has a codebook"):
        fit.quantize()
    dataset = load("wine")
    assert "nonzero_percent" not in fit.metrics(dataset, fit.groups(dataset))


# ---------------------------------------------------------------------- the finding


def tree(rows, **metrics):
    held_out = xarray.Dataset({"y": ("row", np.zeros(rows))})
    made = xarray.DataTree.from_dict({"held_out": held_out})
    made.attrs["metrics"] = json.dumps({k.replace("_", "."): v for k, v in metrics.items()})
    return made


@pytest.mark.parametrize(
    ("rows", "before", "after", "level"),
    [
        (10_000, 0.98, 0.975, "ok"),  # half a point does not matter
        (10_000, 0.98, 0.96, "warn"),
        (300, 0.98, 0.96, "ok"),  # two points of 300 rows are noise
        (300, 0.98, 0.90, "warn"),
        (300, 0.95, 0.97, "ok"),
    ],
)
def test_a_rise_of_the_error_is_a_warning_when_it_matters_and_is_no_noise(
    rows, before, after, level
):
    (finding,) = quantization_findings(
        tree(rows, test_mean_accuracy=before, test_quantized_accuracy=after)
    )
    assert finding.level == level
    assert finding.value == pytest.approx(before - after)
    assert bool(finding.advice) == (level == "warn")


@pytest.mark.parametrize(("after", "level"), [(1.04, "ok"), (1.06, "warn")])
def test_a_rise_of_the_squared_error_is_relative(after, level):
    (finding,) = quantization_findings(tree(50, test_mean_rmse=1.0, test_quantized_rmse=after))
    assert finding.level == level


def test_a_squared_error_of_zero_has_no_relative_rise():
    (finding,) = quantization_findings(tree(50, test_mean_rmse=0.0, test_quantized_rmse=0.0))
    assert (finding.level, finding.value) == ("ok", 0.0)


def test_without_scores_there_is_no_finding():
    assert quantization_findings(xarray.DataTree()) == []
    assert quantization_findings(tree(5)) == []
    broken = tree(5)
    broken.attrs["metrics"] = "["
    assert quantization_findings(broken) == []
