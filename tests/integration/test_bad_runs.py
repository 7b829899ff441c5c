"""Directories that hold no run, half a run, a damaged one, or no room for one."""

import errno
import json
import resource
import shutil

import pytest

from zoo.fit.store import RunDirectory

FIT = ("fit", "mean_field", "--data", "wine", "--num-steps", "3", "--num-samples", "5")


@pytest.fixture
def copy(tmp_path, wine_run):
    """A copy of a finished run that may be spoiled."""
    return shutil.copytree(wine_run, tmp_path / "run")


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def unfinish(run):
    (run / "metrics.json").unlink()
    RunDirectory(run).write_tensors("checkpoint.safetensors", {}, {})


# ---------------------------------------------------------------------- --out


def test_a_directory_with_something_in_it(refused, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note.txt").write_text("mine")
    message = refused(*FIT, "--out", "full")
    assert "'full' is not empty" in message
    assert "--resume full" in message


def test_a_directory_below_a_file(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/run"):
        assert f"cannot write '{out}'" in refused(*FIT, "--out", out)
    (tmp_path / "runs").write_text("mine")
    assert "cannot write 'runs" in refused(*FIT)


# ---------------------------------------------------------------------- --resume


def test_resume_of_a_finished_run(refused, copy):
    assert "finished: nothing to resume" in refused("fit", "--resume", copy)


def test_resume_of_something_else(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in ("empty", "missing"):
        assert f"'{path}' is not a run directory" in refused("fit", "--resume", path)


@pytest.mark.parametrize(
    "flags", [["mean_field"], ["--lr", "0.1"], ["--out", "x"], ["--prior", "Normal(0, 1)"]]
)
def test_resume_with_other_flags(refused, copy, flags):
    unfinish(copy)
    assert "--resume repeats the stored configuration" in refused("fit", "--resume", copy, *flags)


def test_resume_with_a_damaged_checkpoint(refused, copy):
    unfinish(copy)
    shutil.copy(copy / "guide.safetensors", copy / "checkpoint.safetensors")
    assert "does not fit its configuration" in refused("fit", "--resume", copy)
    for share in (0.9, 0.01, 0.0):
        cut(copy / "checkpoint.safetensors", share)
        assert "is damaged or truncated" in refused("fit", "--resume", copy)


def test_resume_with_a_checkpoint_of_nothing(refused, copy):
    unfinish(copy)
    assert "does not fit its configuration" in refused("fit", "--resume", copy)


# ---------------------------------------------------------------------- predict


@pytest.fixture
def predict(refused, tmp_path):
    (tmp_path / "new.csv").write_text("a\n1\n")
    return lambda run: refused("predict", run, "new.csv")


def test_predict_on_an_unfinished_run(predict, copy):
    unfinish(copy)
    message = predict(copy)
    assert "is not finished" in message
    assert f"zoo fit --resume {copy}" in message


def test_predict_on_something_else(predict, tmp_path):
    assert "is not a run directory" in predict(tmp_path)
    assert "is not a run directory" in predict(tmp_path / "missing")
    assert "is not a run directory" in predict(tmp_path / "new.csv")


@pytest.mark.parametrize("share", [0.95, 0.5, 0.001, 0.0])
def test_predict_on_a_truncated_guide(predict, copy, share):
    cut(copy / "guide.safetensors", share)
    assert "guide.safetensors' is damaged or truncated" in predict(copy)


def test_predict_on_a_guide_of_another_network(predict, copy, linear_run):
    shutil.copy(linear_run / "guide.safetensors", copy / "guide.safetensors")
    assert "does not fit its configuration" in predict(copy)


def test_predict_on_a_guide_without_its_numbers(predict, copy):
    tensors, _ = RunDirectory(copy).read_tensors("guide.safetensors")
    RunDirectory(copy).write_tensors("guide.safetensors", tensors, {})
    assert "guide.safetensors" in predict(copy)


@pytest.mark.parametrize("name", ["guide.safetensors", "data.json"])
def test_predict_on_a_run_that_lacks_a_file(predict, copy, name):
    (copy / name).unlink()
    assert name in predict(copy)


@pytest.mark.parametrize(
    ("name", "text", "fragment"),
    [
        ("data.json", "{", "cannot read"),
        ("data.json", "{}", "not a data schema"),
        ("data.json", "[]", "not a data schema"),
        ("config.yaml", "", "must be a mapping"),
        ("config.yaml", "method: mean_field\nunknown: 1\n", "unknown configuration key"),
    ],
)
def test_predict_on_a_run_with_a_damaged_description(predict, copy, name, text, fragment):
    (copy / name).write_text(text)
    assert fragment in predict(copy)


# ---------------------------------------------------------------------- a full disk


@pytest.mark.parametrize("name", ["os.fsync", "os.replace"])
def test_a_full_disk(refused, tmp_path, monkeypatch, name):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(name, fail)
    message = refused(*FIT, "--out", "run", leaves_nothing=False)
    assert "cannot write 'run/data.json': No space left on device." in message
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("limit", [1_000, 20_000])
def test_files_that_may_not_grow(process, tmp_path, limit):
    # The kernel refuses writes beyond the limit, as it does on a full disk.
    with process(
        tmp_path, "-m", "zoo", *FIT, "--out", "run",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    ) as child:  # fmt: skip
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (2, "")
    assert err.startswith("zoo: error: cannot write 'run/")
    assert err.count("\n") == 1
    left = {path.name: path for path in (tmp_path / "run").iterdir()}
    assert not left.keys() & {"metrics.json", "posterior.nc"}
    assert not [name for name in left if name.endswith(".tmp")]
    if "data.json" in left:
        json.loads(left["data.json"].read_text())
