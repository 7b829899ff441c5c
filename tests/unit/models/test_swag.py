"""The method swag: which updates are snapshots, what is stored, and what it refuses."""

import signal

import numpy as np
import pytest
import torch

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.fit.store import RunDirectory
from zoo.infer.svi.loop import Interrupted
from zoo.workflow.fitting import resume, run

OPTIONS = {"net": "mlp:3-4-1", "num_steps": 60, "num_samples": 10, "dtype": "float64"}


def dataset(rows=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows)
    return from_arrays(X, y, X_test=X[:20], y_test=y[:20], task="regression")


def fitted(**options):
    return zoo.fit("swag", data=dataset(), progress_bar=False, **(OPTIONS | options))


@pytest.mark.parametrize(
    ("options", "count"), [({}, 6), ({"every": 1}, 30), ({"start": 0.75, "every": 3}, 5)]
)
def test_snapshots_are_those_of_the_end_of_the_run(options, count):
    guide = fitted(options=options).assembly.guide
    assert int(guide.num_snapshots) == count
    assert guide.metrics()["num_snapshots"] == count


def test_snapshots_are_the_weights_after_the_updates(monkeypatch):
    config = make_config(method="swag", options={"start": 0.5, "every": 1}, **OPTIONS)
    prepared = prepare(config, dataset=dataset())
    svi, seen = prepared.svi, []
    step = svi._step

    def recorded():
        step()
        seen.append(svi.objective.guide.mode.detach().clone())

    monkeypatch.setattr(svi, "_step", recorded)
    guide = run(prepared, progress_bar=False).assembly.guide
    snapshots = torch.stack(seen[30:])
    torch.testing.assert_close(guide.mean, snapshots.mean(0))
    torch.testing.assert_close(guide.variance, snapshots.var(0, correction=0))
    assert torch.equal(guide.mode, guide.mean)


def test_a_stored_fit_has_the_same_draws_and_predictions(tmp_path):
    fit = fitted(out=tmp_path / "run")
    loaded = zoo.load(tmp_path / "run")
    assert loaded.assembly.guide.is_joint
    for name, value in fit.draws.slots.items():
        assert torch.equal(value, loaded.draws.slots[name])
    X = dataset().X_test
    assert np.array_equal(fit.predict(X).mean, loaded.predict(X).mean)


@pytest.mark.parametrize("stop_after", [43, 60])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, monkeypatch, stop_after):
    """Also one that was stopped after the last step, before its results were written."""
    options = OPTIONS | {"checkpoint_every": 10, "net": "mlp:10-3-1"}
    config = make_config(method="swag", data="diabetes", **options)
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
    again = resume(directory)
    assert again.assembly.guide.is_joint
    for name, value in whole.assembly.guide.state_dict().items():
        assert torch.equal(value, again.assembly.guide.state_dict()[name]), name


def test_its_loss_is_not_called_an_elbo():
    assert not fitted().loss_is_elbo


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priors": {"*weight": "GroupHorseshoe(scale=0.1)"}}, "has no mode"),
        ({"guide": "full_rank"}, "made from snapshots"),
        ({"options": {"rank": 1}}, "'rank' is not accepted"),
        ({"options": {"start": 1.0}}, "'start' is not accepted"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_training(options, message):
    with pytest.raises(ConfigError, match=message):
        fitted(**options)
