"""Fits from other starts: what differs, what does not, and that an interruption loses nothing."""

import contextlib
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo.data import from_arrays
from zoo.diagnostics import diagnose
from zoo.errors import ConfigError, ZooError
from zoo.fit import restarts as module
from zoo.fit.build import reinitialised
from zoo.fit.comparable import Outcome, outcome_of, restart_arrays
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.fit.restarts import _choose_executor
from zoo.fit.schema import read_tree
from zoo.fit.store import RunDirectory
from zoo.infer.svi.loop import SVI, Interrupted
from zoo.infer.tasks.executor import Processes
from zoo.infer.tasks.running import run_tasks
from zoo.workflow import outputs
from zoo.workflow.fitting import resume

# In this process, where steps can be counted and starting workers takes no time.
HERE = {"executor": "serial", "progress_bar": False}
OPTIONS = {"num_steps": 30, "num_samples": 10, "batch_size": 16} | HERE


def dataset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x @ np.array([1.0, -1.0]) + 0.1 * rng.normal(size=60)
    return from_arrays(x[:40], y[:40], X_test=x[40:], y_test=y[40:], task="regression")


def fit(**options):
    return zoo.fit("mean_field", data=dataset(), net="mlp:2-4-1", **(OPTIONS | options))


@pytest.fixture(scope="module")
def fitted():
    return fit(restarts=2, validation_fraction=0.2)


def same(outcome, other):
    for name in ("start", "elbo", "elbo_error", "outputs_mean", "outputs_sd", "log_density"):
        np.testing.assert_array_equal(getattr(outcome, name), getattr(other, name), err_msg=name)


def test_a_restart_is_the_fit_that_names_its_start(fitted):
    again = fit(start=2, validation_fraction=0.2)
    same(fitted.restarts[1], outcome_of(again, again.dataset))


def test_the_fit_itself_is_what_it_is_without_restarts(fitted):
    alone = fit(validation_fraction=0.2)
    assert torch.equal(alone.losses, fitted.losses)


def test_starts_differ_and_their_rows_do_not():
    config = {"method": "mean_field", "net": "mlp:2-4-1", "validation_fraction": 0.2}
    first, other, third = (
        prepare(make_config(**config, start=start), dataset=dataset()) for start in (0, 1, 2)
    )
    for prepared in (other, third):
        np.testing.assert_array_equal(prepared.dataset.X_train, first.dataset.X_train)
        assert not torch.equal(
            prepared.assembly.model.net[0].weight, first.assembly.model.net[0].weight
        )
        assert not torch.equal(prepared.svi.batches[0][0], first.svi.batches[0][0])
        assert not torch.equal(prepared.svi._rng["cpu"], first.svi._rng["cpu"])
    assert not torch.equal(third.svi.batches[0][0], other.svi.batches[0][0])


def test_a_network_object_gets_new_weights():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    before = net[0].weight.detach().clone()
    other = reinitialised(net)
    assert torch.equal(net[0].weight, before)
    assert not torch.equal(other[0].weight, before)
    assert not torch.equal(other[2].bias, net[2].bias)


def test_the_tree_holds_all_starts_and_findings_read_them(fitted):
    tree = fitted.tree()
    group = tree["optimization"]
    np.testing.assert_array_equal(group["restart"], [0, 1, 2])
    assert group["restart_elbo"].values[1:].tolist() == [o.elbo for o in fitted.restarts]
    assert group["restart_outputs_mean"].shape == (3, 32, 1)
    assert group["restart_log_density"].shape == (3, 20)
    # The first row is the fit itself.
    np.testing.assert_allclose(
        group["restart_outputs_mean"].values[0],
        tree["functions"]["f"].mean(("chain", "draw")),
        1e-6,
    )
    np.testing.assert_array_equal(
        group["restart_log_density"].values[0], tree["held_out"]["log_density"].values
    )
    checks = {finding.check for finding in diagnose(tree)}
    assert {"optimisation.restarts", "optimisation.restart_predictions"} <= checks


def test_without_restarts_there_is_nothing_of_them():
    tree = fit(num_steps=5).tree()
    assert not any(str(name).startswith("restart") for name in tree["optimization"].variables)


def test_the_error_of_an_elbo_is_the_spread_of_its_draws(fitted):
    own = outcome_of(fitted, fitted.dataset)
    lp, log_q = (fitted.tree()["sample_stats"][name].values for name in ("lp", "log_q"))
    # Draws of the tree are others: two independent estimates of one ELBO.
    error = np.hypot(own.elbo_error, (lp - log_q).std() / np.sqrt(lp.size))
    assert abs(own.elbo - (lp - log_q).mean()) < 5 * error


def test_a_restart_that_diverges_is_counted_and_has_no_numbers(fitted, monkeypatch):
    run = SVI.run

    def diverge(self, **options):
        if self.seed != 0:
            raise self._diverged(1)
        return run(self, **options)

    monkeypatch.setattr(SVI, "run", diverge)
    lost = fit(restarts=1)
    arrays = restart_arrays([fitted.restarts[0], *lost.restarts])
    assert np.isnan(arrays["restart_elbo"][1])
    assert np.isnan(arrays["restart_outputs_mean"][1]).all()
    found = {f.check: f for f in diagnose(lost.tree())}
    assert "optimisation.restarts" not in found  # there is nothing to compare with


def same_run(run, whole):
    assert {path.name for path in run.iterdir()} == {path.name for path in whole.iterdir()}
    here, there = (read_tree(path / "posterior.nc") for path in (run, whole))
    assert here["optimization"].to_dataset().identical(there["optimization"].to_dataset())


@contextlib.contextmanager
def no_page():
    """Leave the report out: drawing takes longer than these fits, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "render_report", lambda *given, **options: "")
        yield


def run_to(path):
    with no_page():
        zoo.fit("mean_field", data="linear", net="linear", out=path, restarts=2, **OPTIONS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    run_to(path)
    return path


@pytest.mark.parametrize("stopped_at", [45, 75])
def test_interrupted_restarts_go_on_where_they_were(tmp_path, whole, monkeypatch, stopped_at):
    """Steps 31 to 60 of all are those of the first restart, 61 to 90 those of the second."""
    step, taken = SVI._step, []

    def counted(self):
        taken.append(self.seed)
        if len(taken) == stopped_at:
            signal.raise_signal(signal.SIGINT)
        step(self)

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(SVI, "_step", counted)
        with pytest.raises(Interrupted):
            run_to(path)
        assert not (path / "metrics.json").exists()
        kept = {file.name for file in path.iterdir()}
        assert ("restarts.safetensors" in kept) == (stopped_at > 60), kept
        with no_page():
            resume(RunDirectory(path), **HERE)
    assert len(taken) == 90  # no step was taken twice
    same_run(path, whole)


def test_a_network_of_the_script_stays_in_this_process():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    prepared = prepare(make_config(method="mean_field", restarts=2), dataset=dataset(), net=Local())
    assert _choose_executor(None, prepared.assembly, prepared.net) == "serial"
    with pytest.raises(ConfigError, match="defined in the running script"):
        _choose_executor("processes:2", prepared.assembly, prepared.net)
    assert _choose_executor("tcp://a:1", prepared.assembly, prepared.net) == "tcp://a:1"


@pytest.mark.parametrize(
    ("cores", "device", "restarts", "executor"),
    [
        (4, "cpu", 3, "processes:3"),
        (2, "cpu", 3, "processes:2"),
        (1, "cpu", 3, "serial"),
        (4, "cpu", 1, "serial"),
        (4, "cuda", 3, "serial"),
    ],
)
def test_restarts_share_the_cores_of_a_machine_without_an_accelerator(
    monkeypatch, cores, device, restarts, executor
):
    prepared = prepare(make_config(method="mean_field", restarts=restarts), dataset=dataset())
    config = prepared.assembly.config.model_copy(update={"device": device, "num_threads": 1})
    monkeypatch.setattr(module, "available_cores", lambda: cores)
    assert _choose_executor(None, replace(prepared.assembly, config=config), None) == executor


def test_an_unknown_executor_is_refused_before_the_fit(monkeypatch):
    monkeypatch.setattr(SVI, "run", None)
    with pytest.raises(ConfigError, match="unknown executor 'threads'"):
        fit(restarts=1, executor="threads")


def test_outcomes_of_unequal_shape_are_filled_with_nothing():
    good = Outcome(0, -1.0, 0.1, np.ones((3, 2)), np.ones((3, 2)), np.empty(0))
    bad = Outcome(1, np.nan, np.nan, np.empty(0), np.empty(0), np.empty(0))
    arrays = restart_arrays([good, bad])
    assert arrays["restart_outputs_sd"].shape == (2, 3, 2)
    assert "restart_log_density" not in arrays


class Broken(Processes):
    """Stands for workers that are killed from outside."""

    def submit(self, fn, /, *args, **kwargs):
        future = super().submit(signal.raise_signal, signal.SIGKILL)
        return future


def test_a_killed_worker_is_explained():
    with Broken(1) as pool, pytest.raises(ZooError, match="a worker process was killed"):
        run_tasks([int], pool, length=1, unit="task", description="", progress_bar=False)


@pytest.mark.slow
def test_restarts_in_processes_have_the_bits_of_serial_ones(fitted):
    parallel = fit(restarts=2, validation_fraction=0.2, executor="processes:2")
    for outcome, other in zip(parallel.restarts, fitted.restarts, strict=True):
        same(outcome, other)
