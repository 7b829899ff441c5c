"""The method laplace: training to the mode, what comes after, and what it refuses."""

import json
import signal

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError
from zoo.fit import store
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.fit.store import RunDirectory
from zoo.infer.svi.loop import SVI, Interrupted
from zoo.models import laplace as method
from zoo.registry import Recipe
from zoo.workflow.fitting import resume, run


def dataset(rows=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows)
    return from_arrays(X, y, X_test=X[:20], y_test=y[:20], task="regression")


OPTIONS = {"net": "mlp:3-4-1", "num_steps": 60, "num_samples": 10, "dtype": "float64"}


def fitted(**options):
    return zoo.fit("laplace", progress_bar=False, **({"data": dataset()} | OPTIONS | options))


def test_after_the_fit_the_network_is_the_mode_and_predictions_are_its_tangent():
    fit = fitted()
    model, guide = fit.assembly.model, fit.assembly.guide
    medians = guide.medians()
    for name, value in medians.items():
        assert torch.equal(model.net.get_parameter(name), value)
    assert model.linearised
    x = torch.as_tensor(dataset().X_train)
    # So small that no unit of the network is switched on or off.
    step = {name: 1e-6 * torch.randn_like(value) for name, value in medians.items()}

    def outputs(function, size):
        with torch.no_grad():
            return function({n: medians[n] + size * step[n] for n in step}, x)

    linear = outputs(model.outputs, 1.0) - outputs(model.outputs, 0.0)
    slope = (outputs(model.evaluate, 1.0) - outputs(model.evaluate, -1.0)) / 2
    torch.testing.assert_close(linear, slope, rtol=1e-4, atol=1e-9)
    # Linear however far.
    far = outputs(model.outputs, 2e6) - outputs(model.outputs, 0.0)
    torch.testing.assert_close(far, 2e6 * linear, rtol=1e-6, atol=1e-6)


def test_the_noise_of_a_linear_model_maximises_the_exact_evidence():
    """log N(y; 0, X Xᵀ + 1 + σ² I), with standard normal weights and bias."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 12))
    y = X @ rng.normal(size=12) + 0.7 * rng.normal(size=30)
    data = from_arrays(X, y, X_test=X[:5], y_test=y[:5], task="regression")
    options = {"net": "mlp:12-1", "num_steps": 3000, "lr": 0.05, "priors": {"*": "Normal(0, 1)"}}
    fit = fitted(data=data, **options)
    noise = float(fit.assembly.model.likelihood.log_noise.exp())
    target = (y - fit.schema.target_mean) / fit.schema.target_scale
    inputs = np.column_stack([np.asarray(data.X_train, float), np.ones(30)])

    def evidence(sigma):
        covariance = inputs @ inputs.T + sigma**2 * np.eye(30)
        return stats.multivariate_normal(np.zeros(30), covariance).logpdf(target)

    grid = np.geomspace(0.05, 5.0, 2000)
    best = grid[np.argmax([evidence(sigma) for sigma in grid])]
    assert noise == pytest.approx(best, rel=0.01)
    # The maximum of the joint density is far away: RSS / N instead of RSS / (N - gamma).
    residuals = target - fit.outputs(data.X_train, fit.draws.values).mean(0)[:, 0].numpy()
    assert np.sqrt((residuals**2).mean()) < 0.85 * best


def test_a_network_that_can_interpolate_keeps_its_noise():
    fit = fitted(data=dataset(rows=25), net="mlp:3-60-1", num_steps=6000, lr=0.02)
    assert float(fit.assembly.model.likelihood.log_noise.exp()) > 0.03


def test_the_loss_is_the_negative_log_joint_up_to_a_constant():
    torch.manual_seed(0)
    net = nn.Linear(3, 1).double()
    likelihood = "gaussian(noise=0.5)"
    x = torch.randn(20, 3, dtype=torch.float64)
    y = x.sum(1)
    model = zoo.create("laplace", net, likelihood=likelihood, num_data=20).double()
    guide = model.guide(init_scale=1e-6)
    recipe = Recipe(num_steps=1500, batch_size=20, lr=0.03, schedule="cosine", kl_warmup=0.0)
    SVI(model, guide, x, y, recipe=recipe, seed=0).run(progress_bar=False)
    design = torch.cat([x, torch.ones(20, 1, dtype=torch.float64)], 1)
    precision = torch.eye(4, dtype=torch.float64) + design.T @ design / 0.25
    mode = torch.linalg.solve(precision, design.T @ y / 0.25)
    torch.testing.assert_close(guide.mode.detach(), mode, rtol=1e-4, atol=1e-5)


def test_many_unknowns_have_a_diagonal_unless_the_matrix_is_asked_for(monkeypatch):
    monkeypatch.setattr(method, "MAX_JOINT", 10)
    fit = fitted()
    assert not fit.assembly.guide.is_joint
    assert np.isfinite(fit.assembly.guide.metrics()["log_evidence"])
    assert fitted(guide="full_rank").assembly.guide.is_joint
    assert fitted(options={"curvature": "full"}).assembly.guide.is_joint
    monkeypatch.setattr(method, "MAX_JOINT", 4000)
    assert not fitted(options={"curvature": "diagonal"}).assembly.guide.is_joint
    monkeypatch.setattr(method, "MAX_FULL_RANK", 20)
    with pytest.raises(ConfigError, match="at most 20 unknowns"):
        fitted(guide="full_rank")
    with pytest.raises(ConfigError, match="at most 20 unknowns"):
        fitted(options={"curvature": "full"})


def test_the_largest_number_of_unknowns_still_has_the_matrix(monkeypatch):
    unknowns = fitted().assembly.guide.mode.numel()
    monkeypatch.setattr(method, "MAX_JOINT", unknowns)
    assert fitted().assembly.guide.is_joint
    monkeypatch.setattr(method, "MAX_JOINT", unknowns - 1)
    assert not fitted().assembly.guide.is_joint


def test_a_stored_fit_has_the_same_draws_predictions_and_evidence(tmp_path):
    fit = fitted(out=tmp_path / "run")
    loaded = zoo.load(tmp_path / "run")
    assert loaded.assembly.model.linearised
    assert loaded.assembly.guide.is_joint
    for name, value in fit.draws.slots.items():
        assert torch.equal(value, loaded.draws.slots[name])
    X = dataset().X_test
    assert np.array_equal(fit.predict(X).mean, loaded.predict(X).mean)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["log_evidence"] == loaded.assembly.guide.metrics()["log_evidence"]


@pytest.mark.parametrize("stop_after", [30, 60])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, monkeypatch, stop_after):
    """Also one that was stopped after the last step, before its results were written."""
    options = OPTIONS | {"checkpoint_every": 10}
    config = make_config(method="laplace", data="diabetes", **(options | {"net": "mlp:10-3-1"}))
    whole = run(prepare(config), RunDirectory.new(tmp_path / "whole"))
    prepared = prepare(config)
    step = prepared.svi._step

    def counted():
        step()
        if prepared.svi.progress.step == stop_after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(prepared.svi, "_step", counted)
    directory = RunDirectory.new(tmp_path / "part")
    with pytest.raises(Interrupted):
        run(prepared, directory)
    assert (directory.path / store.CHECKPOINT).exists()
    again = resume(directory)
    for name, value in whole.assembly.guide.state_dict().items():
        assert torch.equal(value, again.assembly.guide.state_dict()[name]), name
    assert torch.equal(whole.assembly.guide.scale_tril, again.assembly.guide.scale_tril)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priors": {"*weight": "GroupHorseshoe(scale=0.1)"}}, "has no mode"),
        ({"priors": {"*weight": "Normal(0, HalfCauchy(1))"}}, "has no mode"),
    ],
)
def test_priors_without_a_mode_are_refused_before_training(options, message):
    with pytest.raises(ConfigError, match=message):
        fitted(**options)


def test_batch_normalisation_is_refused():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(ConfigError, match=r"batch normalisation.*layer '1'"):
        fitted(net=net)


def test_a_point_that_is_no_mode_is_refused():
    # Away from its centre a Cauchy prior curves upwards; rows of zeros say nothing against it.
    X, y = np.zeros((3, 3)), np.array([0.0, 0.1, 0.0])
    with pytest.raises(ConfigError, match="no Laplace approximation here"):
        zoo.fit(
            "laplace",
            X,
            y,
            net="mlp:3-1",
            task="regression",
            likelihood="gaussian(noise=1)",
            priors={"*weight": "Cauchy(0, 1e-6)"},
            num_steps=1,
            progress_bar=False,
        )


def test_truth_is_that_of_the_network_and_not_of_its_tangent():
    from zoo.truth.of_fit import _Sampled

    fit = fitted()
    sampled = _Sampled(fit, dataset())
    assert fit.assembly.model.linearised
    assert not sampled.model.linearised


def test_predictions_of_many_draws_are_captured_or_not_with_the_same_result():
    fit = fitted(net="mlp:3-4-1", num_samples=60)
    X = dataset().X_train
    slots = fit.draws.values
    plain = fit.outputs(X, slots)
    many = np.concatenate([X] * 60)
    assert torch.allclose(fit.outputs(many, slots)[:, : len(X)], plain)
