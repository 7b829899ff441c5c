"""The Python side: fits in memory, networks of one's own, saving and loading."""

import hashlib

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError, DataError, StoreError
from zoo.fit.schema import read_tree

OPTIONS = {"num_steps": 20, "num_samples": 10}


class Wide(nn.Module):
    """A network that no text names."""

    def __init__(self, num_inputs=3, num_outputs=2):
        super().__init__()
        self.first = nn.Linear(num_inputs, 6)
        self.last = nn.Linear(6, num_outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    return X, np.where(X[:, 0] + 0.3 * rng.normal(size=80) > 0, "up", "down")


@pytest.fixture(scope="module")
def stored(arrays, tmp_path_factory):
    """A fit of a network object, with the network and the directory it was written to."""
    torch.manual_seed(0)
    net = Wide()
    out = tmp_path_factory.mktemp("api") / "run"
    return zoo.fit("mean_field", *arrays, net=net, out=out, **OPTIONS), net


def assert_same_draws(fitted, other):
    for kind in ("sites", "slots"):
        here, there = getattr(fitted.draws, kind), getattr(other.draws, kind)
        assert here.keys() == there.keys()
        for name in here:
            assert torch.equal(here[name], there[name]), name


def fingerprint(fitted):
    values = (fitted.draws.sites | fitted.draws.slots).items()
    parts = [name.encode() + value.numpy().tobytes() for name, value in values]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_own_network_comes_back_from_the_directory(stored, arrays):
    fitted, _ = stored
    loaded = zoo.load(fitted.path, net=Wide())
    assert_same_draws(fitted, loaded)
    here, there = fitted.predict(arrays[0]), loaded.predict(arrays[0])
    np.testing.assert_array_equal(here.probabilities, there.probabilities)
    np.testing.assert_array_equal(here.samples, there.samples)
    assert here.labels == there.labels
    assert torch.equal(fitted.losses, loaded.losses)


def test_own_network_must_be_passed_again(stored):
    with pytest.raises(ConfigError, match="pass the same network as net="):
        zoo.load(stored[0].path)
    with pytest.raises(ConfigError, match="does not accept rows"):
        zoo.load(stored[0].path, net=Wide(4))
    wider = Wide()
    wider.first, wider.last = nn.Linear(3, 7), nn.Linear(7, 2)
    with pytest.raises(StoreError, match="does not fit its configuration"):
        zoo.load(stored[0].path, net=wider)
    with pytest.raises(StoreError, match="does not fit its configuration"):
        zoo.load(stored[0].path, net=nn.Linear(3, 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_own_network_is_left_alone(arrays, dtype):
    net = Wide()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    zoo.fit("mean_field", *arrays, net=net, dtype=dtype, **OPTIONS)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == torch.float32
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net.training


def test_fit_in_memory_is_saved_later(arrays, tmp_path):
    dataset = from_arrays(*arrays)
    fitted = zoo.fit("mean_field", data=dataset, net="mlp:3-4-2", **OPTIONS)
    assert fitted.path is None
    saved = zoo.save(fitted, tmp_path / "run")
    assert saved.path == tmp_path / "run"
    assert_same_draws(fitted, zoo.load(tmp_path / "run"))
    with pytest.raises(StoreError, match="is not empty"):
        zoo.save(fitted, tmp_path / "run")


def test_fit_with_held_out_rows_is_saved_later(arrays, tmp_path):
    dataset = from_arrays(*arrays)
    options = OPTIONS | {"validation_fraction": 0.25, "kl_warmup": 0.0}
    at_once = zoo.fit("mean_field", data=dataset, out=tmp_path / "one", **options)
    assert at_once.assembly.model.num_data == 60
    in_memory = zoo.fit("mean_field", data=dataset, **options)
    zoo.save(in_memory, tmp_path / "two")
    trees = [read_tree(tmp_path / name / "posterior.nc") for name in ("one", "two")]
    for tree in trees:
        assert tree["log_likelihood"]["y"].shape == (1, 10, 60)
        assert (tree["log_likelihood"]["y"] == trees[0]["log_likelihood"]["y"]).all()


def test_a_loaded_fit_does_not_hold_its_data(wine_run, tmp_path):
    with pytest.raises(StoreError, match="does not hold its data"):
        zoo.save(zoo.load(wine_run), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_load_in_a_new_process_gives_the_same_draws(process, wine_run, tmp_path):
    names = ("import hashlib, zoo", f"fitted = zoo.load({str(wine_run)!r})")
    code = (
        "values = (fitted.draws.sites | fitted.draws.slots).items()",
        "parts = [name.encode() + value.numpy().tobytes() for name, value in values]",
        "print(hashlib.sha256(b''.join(parts)).hexdigest())",
    )
    with process(tmp_path, "-W", "error", "-c", "\n".join(names + code)) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert out.strip() == fingerprint(zoo.load(wine_run))


def test_fit_leaves_the_caller_s_random_numbers_alone(arrays):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    fitted = zoo.fit("mean_field", *arrays, **OPTIONS)
    fitted.predict(arrays[0])
    fitted.summary()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_the_seed_decides_everything(arrays):
    one, same, other = (
        zoo.fit("group_horseshoe", *arrays, seed=seed, **OPTIONS) for seed in (1, 1, 2)
    )
    assert_same_draws(one, same)
    assert torch.equal(one.losses, same.losses)
    assert not torch.equal(one.losses, other.losses)


def test_score_and_probabilities_of_classes(stored, arrays):
    X, y = arrays
    scores = stored[0].score(X, y)
    assert scores.keys() == {"accuracy", "nll", "ece", "brier"}
    probabilities = stored[0].predict_proba(X)
    assert probabilities.shape == (80, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-6)
    right = np.array(["down", "up"])[probabilities.argmax(1)] == y
    assert scores["accuracy"] == pytest.approx(right.mean())
    with pytest.raises(ConfigError, match="classes have no quantiles"):
        stored[0].predict(X).quantile(0.5)


def test_score_of_a_regression(linear_run):
    fitted = zoo.load(linear_run)
    frame = zoo.data.synthetic.read_synthetic("linear")
    scores = fitted.score(frame, frame["y"])
    assert scores.keys() == {"rmse", "nll", "crps"}
    expected = np.sqrt(np.mean((fitted.predict(frame).mean - frame["y"]) ** 2))
    assert scores["rmse"] == pytest.approx(expected)
    with pytest.raises(ConfigError, match="a fit for regression has no class probabilities"):
        fitted.predict_proba(frame)
    with pytest.raises(ConfigError, match="labels are for classes"):
        fitted.predict(frame).labels  # noqa: B018


def test_summary_has_a_row_per_site(stored):
    fitted = stored[0]
    summary = fitted.summary()
    assert list(summary.columns) == [
        "size", "mean", "mean of |mean|", "smallest sd", "median sd", "largest sd",
    ]  # fmt: skip
    assert list(summary.index) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert summary.loc["first.weight", "size"] == 18
    assert (summary["smallest sd"] <= summary["largest sd"]).all()


def test_counts_are_predicted_as_rates(arrays):
    X = arrays[0]
    y = np.random.default_rng(0).poisson(np.exp(X[:, 0]))
    fitted = zoo.fit("mean_field", X, y, task="counts", num_steps=5, num_samples=20)
    prediction = fitted.predict(X)
    assert (prediction.samples == prediction.samples.round()).all()
    assert (prediction.mean > 0).all()


@pytest.mark.parametrize(
    ("call", "error", "fragment"),
    [
        (lambda X, y: zoo.fit("mean_field", X, y, data="wine"), ConfigError, "either X and y"),
        (lambda X, y: zoo.fit("mean_field"), ConfigError, "either X and y, or data="),
        (lambda X, y: zoo.fit("mean_field", X), ConfigError, "either X and y"),
        (lambda X, y: zoo.fit("mean_field", y=y, data="wine"), ConfigError, "either X and y"),
        (lambda X, y: zoo.fit("mean_field", X, y[:-1]), DataError, "80 rows and y has 79"),
        (lambda X, y: zoo.fit("mean_field", X * np.nan, y), DataError, "NaN"),
        (lambda X, y: zoo.fit("mean_field", X, y, steps=3), ConfigError, "unknown config.*'steps'"),
        (lambda X, y: zoo.fit("mean_field", X, y, net=Wide(3, 5)), ConfigError, "output shape"),
        (lambda X, y: zoo.fit("mean_field", X, y, net=Wide(2)), ConfigError, "rows of shape"),
        (lambda X, y: zoo.load("nowhere"), StoreError, "is not a run directory"),
    ],
)
def test_mistakes_are_explained(arrays, call, error, fragment):
    with pytest.raises(error, match=fragment):
        call(*arrays)


def test_mistakes_in_new_rows_are_explained(stored, arrays):
    fitted, (X, y) = stored[0], arrays
    with pytest.raises(DataError, match=r"X has shape \(80, 2\)"):
        fitted.predict(X[:, :2])
    with pytest.raises(DataError, match="lacks 3 of the 3 input columns"):
        fitted.predict(pd.DataFrame({"a": [1.0]}))
    with pytest.raises(DataError, match="class 'left' was not seen"):
        fitted.score(X, np.full(80, "left"))
    with pytest.raises(DataError, match="X has 80 rows and y has 79"):
        fitted.score(X, y[:-1])
    with pytest.raises(ConfigError, match="num_samples must be at least 1"):
        fitted.predict(X, num_samples=0)
