"""Curves of a fit under attack: closed forms of linear models, and what is kept of them."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError
from zoo.infer.svi.schedule import child_seed
from zoo.robustness import curves as module
from zoo.robustness.curves import robustness_of

FEW = {"parameter_noise": (0.0,), "deletion": (0.0,)}


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=300) > 0).astype(int)
    return from_arrays(X[:100], y[:100], X_test=X[100:], y_test=y[100:], task="classification")


@pytest.fixture(scope="module", params=["bernoulli", "categorical"])
def fitted(dataset, request):
    """A linear classifier with two classes, and one logit or two."""
    return zoo.fit(
        "mean_field", data=dataset, net="linear", num_steps=60, num_samples=12, dtype="float64",
        compile="off", progress_bar=False, likelihood=request.param,
    )  # fmt: skip


def log_odds(values):
    """Return the difference of the logits of both classes, which are the rows of the values."""
    return values[-1] - values[0] if len(values) == 2 else values[0]


@pytest.fixture(scope="module")
def plane(fitted, dataset):
    """Normal vector and signed margin of every test row, for the first draw."""
    values = {name: value[0] for name, value in fitted.draws.slots.items()}
    w = log_odds(values["0.weight"]).numpy()
    b = float(log_odds(values["0.bias"]))
    side = 2 * dataset.y_test - 1
    return w, side * (dataset.X_test @ w + b)


def test_accuracy_under_gaussian_noise_is_that_of_theory(fitted, dataset, plane):
    repeats, scales = 60, (0.0, 0.5, 2.0)
    curves = fitted.robustness(
        input_noise=scales, fgsm=(0.0,), num_draws=1, num_repeats=repeats, **FEW
    )
    w, margin = plane
    found = curves["input_noise_accuracy"].to_numpy()
    assert found[0] == pytest.approx((margin > 0).mean(), rel=1e-12)
    for scale, accuracy in zip(scales[1:], found[1:], strict=True):
        right = norm.cdf(margin / (scale * np.linalg.norm(w)))
        error = np.sqrt((right * (1 - right)).sum() / repeats) / len(right)
        assert abs(accuracy - right.mean()) < 5 * error


def test_accuracy_under_fgsm_is_that_of_theory(fitted, plane):
    steps = (0.0, 0.1, 0.3, 1.0)
    curves = fitted.robustness(input_noise=(0.0,), fgsm=steps, num_draws=1, **FEW)
    w, margin = plane
    expected = [(margin - step * np.abs(w).sum() > 0).mean() for step in steps]
    np.testing.assert_allclose(curves["fgsm_accuracy"], expected, rtol=0, atol=1e-12)
    attacked = np.logaddexp(0, -(margin - 1.0 * np.abs(w).sum())).mean()
    assert float(curves["fgsm_nll"][-1]) == pytest.approx(attacked, rel=1e-9)


def test_inputs_without_a_gradient_are_not_attacked(fitted, monkeypatch):
    def nothing(model, values, x, targets):
        return torch.zeros_like(x)

    monkeypatch.setattr("zoo.robustness.curves.fgsm_direction", nothing)
    curves = fitted.robustness(input_noise=(0.0,), fgsm=(0.0, 1.0), num_draws=1, **FEW)
    assert curves["fgsm_nll"][1] == curves["fgsm_nll"][0]


def test_without_strength_every_attack_has_the_scores_of_the_fit(fitted, dataset):
    curves = fitted.robustness(num_draws=1000)
    scores = fitted.posterior_scores(dataset.X_test, dataset.y_test)
    for attack in ("input_noise", "fgsm", "parameter_noise", "deletion"):
        for score in ("accuracy", "nll"):
            assert float(curves[f"{attack}_{score}"][0]) == pytest.approx(scores[score], rel=1e-12)
    assert curves.attrs["rows"] == 200
    assert curves.attrs["draws"] == 12
    assert curves.attrs["ranking"] == "signal_to_noise"


def test_deleting_everything_leaves_the_biases(fitted, dataset):
    curves = fitted.robustness(
        input_noise=(0.0,), fgsm=(0.0,), parameter_noise=(0.0,), deletion=(0.0, 1.0)
    )
    bias = fitted.draws.slots["0.bias"]
    guess = int(log_odds(bias.T).sigmoid().mean() > 0.5)
    assert float(curves["deletion_accuracy"][-1]) == (dataset.y_test == guess).mean()


def test_the_same_curves_every_time(fitted):
    assert fitted.robustness(num_draws=3).identical(fitted.robustness(num_draws=3))


def test_every_repetition_has_noise_of_its_own_from_the_seed_of_the_fit(fitted, monkeypatch):
    seeds = []

    def noisy_inputs(x, scale, *, seed):
        seeds.append(seed)
        return x

    monkeypatch.setattr(module, "noisy_inputs", noisy_inputs)
    fitted.robustness(input_noise=(0.0, 1.0), fgsm=(0.0,), num_draws=1, num_repeats=3, **FEW)
    streams = [module.STREAM + repetition for repetition in (1, 2, 3)]
    assert seeds == [child_seed(fitted.config.seed, stream) for stream in streams] * 2


def test_attacked_rows_can_be_kept_in_range(fitted, dataset):
    free = fitted.robustness(input_noise=(0.0,), fgsm=(0.0, 1.0), **FEW)
    kept = fitted.robustness(input_noise=(0.0,), fgsm=(0.0, 1.0), clamp=(-0.1, 0.1), **FEW)
    assert kept.attrs["clamp"] == "-0.1 to 0.1"
    assert not np.array_equal(kept["fgsm_nll"], free["fgsm_nll"])


def test_numbers_are_scored_by_their_error():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 2))
    data = from_arrays(X, X[:, 0] + 0.1 * rng.normal(size=80), task="regression")
    fit = zoo.fit(
        "mean_field", data=data, net="linear", num_steps=30, num_samples=8, progress_bar=False
    )
    curves = robustness_of(fit, data, num_draws=2)
    assert {"fgsm_rmse", "fgsm_nll"} <= set(curves.data_vars)
    assert curves.attrs["held_out"] == 0  # there are no test rows
    assert float(curves["fgsm_rmse"][-1]) > float(curves["fgsm_rmse"][0])


@pytest.mark.parametrize("strengths", [(0.2, 0.1), (0.0, 0.0), (-1.0,), (float("nan"),)])
def test_strengths_must_rise_from_zero(fitted, strengths):
    with pytest.raises(ConfigError, match="increasing numbers"):
        fitted.robustness(fgsm=strengths)


def test_a_loaded_fit_needs_its_data(fitted, dataset, tmp_path):
    fitted.save(tmp_path / "run")
    loaded = zoo.load(tmp_path / "run")
    with pytest.raises(ConfigError, match="pass dataset="):
        loaded.robustness()
    assert loaded.robustness(dataset, num_draws=3).identical(fitted.robustness(num_draws=3))


def test_only_graphs_have_edges_to_cut(dataset, fitted):
    last = ["linear(outputs)", "zero"]
    net = {"edges": {"0-1": ["linear(4)", ["linear(4)", "tanh"]], "0-2": last, "1-2": last}}
    graph = zoo.fit(
        "gumbel_softmax_structure", data=dataset, net=net, num_steps=5, num_samples=4,
        compile="off", progress_bar=False,
    )  # fmt: skip
    options = {"input_noise": (0.0,), "fgsm": (0.0,), **FEW}
    curves = graph.robustness(cut_edges=(0.0, 1.0), **options)
    assert curves["cut_edges_accuracy"].shape == (2,)
    # Without edges all classes are alike, and the first one is taken.
    assert float(curves["cut_edges_accuracy"][1]) == pytest.approx((dataset.y_test == 0).mean())
    assert "cut_edges" not in fitted.robustness(**options)


@pytest.mark.parametrize(("last", "has_curve"), [(["linear(outputs)", "zero"], True), ([], False)])
def test_edges_are_cut_if_at_least_two_have_a_choice(dataset, last, has_curve):
    edges = {"0-1": ["linear(4)", ["linear(4)", "tanh"]], "1-2": last or ["linear(outputs)"]}
    graph = zoo.fit(
        "gumbel_softmax_structure", data=dataset, net={"edges": edges}, num_steps=2, num_samples=2,
        compile="off", progress_bar=False,
    )  # fmt: skip
    curves = graph.robustness(input_noise=(0.0,), fgsm=(0.0,), cut_edges=(0.0,), **FEW)
    assert ("cut_edges" in curves.coords) is has_curve
