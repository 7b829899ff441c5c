import errno
import json
import math
import os

import pytest
import torch

from zoo.errors import StoreError
from zoo.fit.store import RunDirectory, atomic_path, next_run_path


@pytest.fixture
def run(tmp_path):
    return RunDirectory.new(tmp_path / "run")


def test_tensors_and_numbers_come_back_to_the_bit(run):
    tensors = {
        "float32": torch.tensor([math.pi, -0.0, math.inf, math.nan]),
        "float64": torch.tensor([[1 / 3]], dtype=torch.float64),
        "int64": torch.arange(3),
        "uint8": torch.get_rng_state(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0),
        "strided": torch.arange(6.0).reshape(2, 3).T,
    }
    numbers = {"step": 3, "best": math.inf, "third": 1 / 3, "stopped": False}
    run.write_tensors("t.safetensors", tensors, numbers)
    read, header = run.read_tensors("t.safetensors")
    assert header == numbers
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        assert read[name].dtype == value.dtype
        assert read[name].shape == value.shape
        assert torch.equal(read[name].nan_to_num(9.0), value.nan_to_num(9.0))


def test_tensors_that_share_memory_are_stored(run):
    base = torch.arange(4.0)
    run.write_tensors("t.safetensors", {"a": base, "b": base[:2], "c": base}, {})
    read, _ = run.read_tensors("t.safetensors")
    assert read["b"].tolist() == [0.0, 1.0]


def test_files_can_be_read_by_whom_the_umask_allows(run):
    previous = os.umask(0o022)
    try:
        run.write_tensors("t.safetensors", {"a": torch.zeros(1)}, {})
        run.write_json("t.json", {})
    finally:
        os.umask(previous)
    assert (run.path / "t.safetensors").stat().st_mode & 0o777 == 0o644
    assert (run.path / "t.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 20, 100, -1])
def test_a_truncated_file_is_refused(run, keep):
    run.write_tensors("t.safetensors", {"a": torch.zeros(100)}, {"step": 1})
    path = run.path / "t.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"'.*t.safetensors' is damaged or truncated"):
        run.read_tensors("t.safetensors")


def test_files_of_other_origin_are_refused(run):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, run.path / "foreign.safetensors")
    with pytest.raises(StoreError, match="has format None, not 1"):
        run.read_tensors("foreign.safetensors")
    torch.save({"a": torch.zeros(1)}, run.path / "pickle.safetensors")
    with pytest.raises(StoreError, match="damaged or truncated"):
        run.read_tensors("pickle.safetensors")
    with pytest.raises(StoreError, match=r"there is no missing.safetensors"):
        run.read_tensors("missing.safetensors")


def test_json_that_cannot_be_read(run):
    (run.path / "bad.json").write_text('{"a": ')
    (run.path / "binary.json").write_bytes(b"\xff\xfe")
    for name in ("bad.json", "binary.json", "missing.json"):
        with pytest.raises(StoreError, match=f"cannot read .*{name}"):
            run.read_json(name)


def test_an_error_while_writing_keeps_the_old_file(run):
    run.write_text("note.txt", "old")

    def write_half():
        with atomic_path(run.path / "note.txt") as temporary:
            temporary.write_text("new, but only ha")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_half()
    assert [path.name for path in run.path.iterdir()] == ["note.txt"]
    assert (run.path / "note.txt").read_text() == "old"


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_files(run, monkeypatch, function):
    run.write_json("metrics.json", {"a": 1})
    run.write_tensors("t.safetensors", {"a": torch.zeros(3)}, {})

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(StoreError, match=r"cannot write '.*metrics.json': No space left"):
            run.write_json("metrics.json", {"a": 2})
        with pytest.raises(StoreError, match=r"cannot write '.*t.safetensors': No space left"):
            run.write_tensors("t.safetensors", {"a": torch.ones(3)}, {})
    assert sorted(os.listdir(run.path)) == ["metrics.json", "t.safetensors"]
    assert json.loads((run.path / "metrics.json").read_text()) == {"a": 1}
    assert torch.equal(run.read_tensors("t.safetensors")[0]["a"], torch.zeros(3))


def test_numbered_directories(tmp_path):
    assert next_run_path(tmp_path / "runs").name == "1"
    for name in ("1", "3", "9", "10", "notes", "7b", "-4", "99999999999999999999"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert next_run_path(tmp_path / "runs").name == "11"


def test_runs_that_is_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match="cannot write 'runs'"):
        RunDirectory.new(None)
    (tmp_path / "runs").unlink()
    (tmp_path / "runs").symlink_to("nowhere/at/all")
    with pytest.raises(StoreError, match="runs"):
        RunDirectory.new(None)


def test_an_empty_directory_may_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    assert RunDirectory.new(tmp_path / "empty").path == tmp_path / "empty"
    (tmp_path / "empty/.hidden").write_text("")
    with pytest.raises(StoreError, match="is not empty"):
        RunDirectory.new(tmp_path / "empty")


def test_a_run_is_complete_when_its_metrics_are_there(run):
    with pytest.raises(StoreError, match="is not a run directory"):
        run.require_complete()
    run.write_text("config.yaml", "")
    with pytest.raises(StoreError, match=r"is not finished\. Continue it with zoo fit --resume"):
        run.require_complete()
    run.write_json("metrics.json", {})
    run.require_complete()
    assert run.is_complete


def test_leftovers_of_a_killed_process_are_removed(run):
    run.write_text("config.yaml", "")
    (run.path / ".checkpoint.safetensors.123.tmp").write_bytes(b"half")
    run.remove_leftovers()
    assert [path.name for path in run.path.iterdir()] == ["config.yaml"]


def test_text_that_has_no_encoding_is_written_all_the_same(run):
    run.write_text("report.html", "é \udcff")
    assert (run.path / "report.html").read_text(encoding="utf-8") == "é \\udcff"


def test_a_run_is_written_by_one_process_at_a_time(tmp_path):
    run = RunDirectory.new(tmp_path / "run")
    run.write_text("config.yaml", "method: mean_field\n")
    with run.locked():
        with pytest.raises(StoreError, match="another process is writing"), run.locked():
            pass
    with run.locked():
        pass
