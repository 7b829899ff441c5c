"""Runs that were killed or interrupted end in the same bits as runs that were not."""

import shutil
import signal
import time

import pytest
import torch

import zoo
from zoo.errors import StoreError
from zoo.fit.result import Fitted
from zoo.fit.store import RunDirectory
from zoo.workflow import outputs

CONFIG = (
    "fit", "group_horseshoe", "--data", "wine", "--num-steps", "120", "--num-samples", "10",
    "--batch-size", "32",
)  # fmt: skip
VALIDATED = (*CONFIG, "--num-steps", "60", "--validation-fraction", "0.2", "--kl-warmup", "0.1")
#: 142 rows in batches of 32 are epochs of 5 steps, so these checkpoints are in the middle of one.
OFTEN = ("--checkpoint-every", "7")
NEVER = ("--checkpoint-every", "100000")


def finished(command, directory, *arguments):
    outcome = command(directory, *arguments, "--out", "whole")
    assert outcome.finished, outcome
    return directory / "whole"


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """An uninterrupted run, without checkpoints."""
    return finished(command, tmp_path_factory.mktemp("whole"), *CONFIG, *NEVER)


@pytest.fixture(scope="module")
def whole_validated(command, tmp_path_factory):
    return finished(command, tmp_path_factory.mktemp("validated"), *VALIDATED)


def assert_same_run(run, other):
    names = {path.name for path in other.iterdir()}
    assert {path.name for path in run.iterdir()} == names
    here, there = RunDirectory(run), RunDirectory(other)
    tensors, expected = (d.read_tensors("guide.safetensors")[0] for d in (here, there))
    assert tensors.keys() == expected.keys()
    for name in expected:
        assert torch.equal(tensors[name], expected[name]), name
    metrics, wanted = here.read_json("metrics.json"), there.read_json("metrics.json")
    assert metrics | {"seconds": 0} == wanted | {"seconds": 0}


def wait_for(child, path, is_enough=lambda: True):
    deadline = time.monotonic() + 60
    while not (path.exists() and is_enough()):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def checkpoint_step(run):
    return RunDirectory(run).read_tensors("checkpoint.safetensors")[1]["step"]


def test_killed_in_the_middle_of_an_epoch(command, process, tmp_path, whole):
    run = tmp_path / "run"
    with process(tmp_path, "-m", "zoo", *CONFIG, *OFTEN, "--out", "run") as child:
        wait_for(child, run / "checkpoint.safetensors", lambda: checkpoint_step(run) >= 28)
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert 0 < checkpoint_step(run) < 120
    assert not (run / "metrics.json").exists()
    outcome = command(tmp_path, "fit", "--resume", "run")
    assert outcome.finished, outcome
    assert_same_run(run, whole)


def test_killed_before_the_first_checkpoint(process, tmp_path, whole):
    run = tmp_path / "run"
    with process(tmp_path, "-m", "zoo", *CONFIG, *NEVER, "--out", "run") as child:
        wait_for(child, run / "config.yaml")
        child.kill()
    assert {path.name for path in run.iterdir()} == {"config.yaml", "data.json"}
    (run / ".checkpoint.safetensors.1.tmp").write_bytes(b"half")
    # In a third process, so that nothing is left of the first.
    with process(tmp_path, "-m", "zoo", "fit", "--resume", "run") as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode in (0, 3), err) == (True, "")
    assert "run     run\n" in out
    assert_same_run(run, whole)


def test_interrupted_by_ctrl_c(command, process, tmp_path, whole):
    run = tmp_path / "run"
    with process(tmp_path, "-m", "zoo", *CONFIG, *OFTEN, "--out", "run") as child:
        wait_for(child, run / "checkpoint.safetensors")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert err == (
        "zoo: interrupted; the checkpoint is saved. Continue with: zoo fit --resume run\n"
    )
    assert command(tmp_path, "fit", "--resume", "run").finished
    assert_same_run(run, whole)


def test_killed_after_early_stopping_has_begun(command, process, tmp_path, whole_validated):
    run = tmp_path / "run"

    def has_a_best():
        tensors, _ = RunDirectory(run).read_tensors("checkpoint.safetensors")
        return any(name.startswith("best.") for name in tensors)

    with process(tmp_path, "-m", "zoo", *VALIDATED, *OFTEN, "--out", "run") as child:
        wait_for(child, run / "checkpoint.safetensors", has_a_best)
        child.kill()
    assert command(tmp_path, "fit", "--resume", "run").finished
    assert_same_run(run, whole_validated)


@pytest.mark.parametrize("stage", ["groups", "write_tree", "render_report"])
def test_stopped_while_results_are_written(command, tmp_path, whole, monkeypatch, stage):
    def stop(*arguments, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fitted if stage == "groups" else outputs, stage, stop)
        outcome = command(tmp_path, *CONFIG, "--out", "run", "--num-steps", "20")
        assert outcome.code == 130
        assert "the checkpoint is saved" in outcome.err
    run = tmp_path / "run"
    with pytest.raises(StoreError, match="is not finished"):
        zoo.load(run)
    assert command(tmp_path, "fit", "--resume", "run").finished
    assert {path.name for path in run.iterdir()} == {path.name for path in whole.iterdir()}


def test_resume_refuses_other_data(refused, tmp_path, flowers, flower_run):
    run = shutil.copytree(flower_run, tmp_path / "run")
    (run / "metrics.json").unlink()
    flowers.sample(frac=1.0, random_state=0).to_csv(tmp_path / "flowers.csv", index=False)
    assert "are not those of the configuration" in refused("fit", "--resume", "run")


def test_a_second_interrupt_does_not_wait(command, tmp_path, monkeypatch):
    def stop_twice(self):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("zoo.infer.svi.loop.SVI._step", stop_twice)
    outcome = command(tmp_path, *CONFIG, *OFTEN, "--out", "run")
    assert outcome.code == 130
    assert "--resume run" in outcome.err
    assert not (tmp_path / "run/checkpoint.safetensors").exists()
