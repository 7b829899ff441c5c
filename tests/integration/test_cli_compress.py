"""``zoo compress`` as a user runs it."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch

import zoo
from zoo.data import load as load_data


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory, command):
    directory = tmp_path_factory.mktemp("digits")
    outcome = command(
        directory, "fit", "group_horseshoe", "--data", "digits", "--net", "mlp:64-30-20-10",
        "--num-steps", 200, "--num-samples", 10, "--compile", "off", "--out", "run", "--quiet",
    )  # fmt: skip
    assert outcome.finished, outcome
    return directory / "run"


@pytest.fixture(scope="module")
def compressed_run(digits_run, command):
    outcome = command(digits_run.parent, "compress", "run")
    assert outcome.code == 0, outcome
    return digits_run, outcome.out


def test_command_prints_a_table_and_writes_files(compressed_run):
    run, printed = compressed_run
    assert "compression, fast prediction" in printed
    assert "test accuracy" in printed
    assert {file.name for file in (run / "compressed").iterdir()} == {
        "network.json",
        "network.safetensors",
        "network.onnx",
    }
    summary = json.loads((run / "compression.json").read_text())
    assert f"{summary['packed']['bytes']:,}" in printed
    files = [run / "compressed" / name for name in ("network.json", "network.safetensors")]
    assert sum(file.stat().st_size for file in files) == summary["packed"]["bytes"]
    metrics = json.loads((run / "metrics.json").read_text())
    assert summary["posterior"]["test"]["accuracy"] == metrics["test.accuracy"]
    assert set(summary["posterior"]["test"]) == {"accuracy", "nll", "ece", "brier"}


def test_loaded_network_reaches_the_accuracy_that_was_printed(compressed_run):
    run, _ = compressed_run
    dataset = load_data("digits")
    x = torch.as_tensor(dataset.X_test, dtype=torch.float32)
    with torch.no_grad():
        outputs = zoo.compress.load(run / "compressed")(x)
    accuracy = (outputs.argmax(1).numpy() == dataset.y_test).mean()
    summary = json.loads((run / "compression.json").read_text())
    assert accuracy == pytest.approx(summary["packed"]["test"]["accuracy"])
    session = onnxruntime.InferenceSession(
        run / "compressed" / "network.onnx", providers=["CPUExecutionProvider"]
    )
    (exported,) = session.run(None, {"input": x.numpy()})
    assert np.abs(exported - outputs.numpy()).max() <= 1e-5 * (1 + outputs.abs().max())


def test_report_has_a_section_on_compression(compressed_run, command):
    run, _ = compressed_run
    page = (run / "report.html").read_text()
    assert '<section id="compression">' in page
    assert "FLOPs per row" in page
    assert command(run.parent, "report", "run").finished
    assert '<section id="compression">' in (run / "report.html").read_text()


def test_python_call_does_the_same(digits_run, tmp_path):
    shutil.copytree(digits_run, tmp_path / "run")
    result = zoo.compress(tmp_path / "run", threshold=0.5, onnx=False, bits="sd")
    assert result.choice.rule == "threshold"
    assert (tmp_path / "run" / "compression.json").exists()
    fitted = zoo.load(tmp_path / "run")
    again = fitted.compress(load_data("digits"), threshold=0.5, bits="sd")
    assert again.choice.to_dict() == result.choice.to_dict()


def test_thresholds_and_tolerance_as_flags(digits_run, tmp_path, zoo_here):
    shutil.copytree(digits_run, tmp_path / "run")
    outcome = zoo_here(
        "compress", "run", "--threshold", "0.weight=0.5", "--threshold", "2.*=1", "--no-onnx"
    )
    assert outcome.code == 0, outcome
    choice = json.loads((tmp_path / "run" / "compression.json").read_text())["choice"]
    assert choice["rule"] == "threshold"
    assert choice["slots"]["0.weight"]["threshold"] == 0.5
    assert choice["slots"]["4.weight"]["kept"] == 20
    assert not (tmp_path / "run" / "compressed" / "network.onnx").exists()
    outcome = zoo_here("compress", "run", "--tolerance", "0.01", "--bits", "off")
    assert outcome.code == 0, outcome
    choice = json.loads((tmp_path / "run" / "compression.json").read_text())["choice"]
    assert choice["rule"] == "tolerance"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--threshold", "much"], "a threshold is a number"),
        (["--threshold", "1", "--threshold", "0.weight=2"], "not both"),
        (["--threshold", "9.weight=1"], "matches no slot"),
        (["--threshold", "nan"], "must be a number"),
        (["--threshold", "1", "--tolerance", "1"], "not both"),
        (["--tolerance", "-1"], "zero or more"),
        (["--bits", "few"], "unknown rule for bits"),
    ],
)
def test_bad_flags_are_explained(digits_run, tmp_path, refused, flags, message):
    shutil.copytree(digits_run, tmp_path / "run")
    assert message in refused("compress", "run", *flags)


def test_directories_without_a_finished_run_are_explained(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    assert "not a run directory" in refused("compress", "empty")
    assert "not a run directory" in refused("compress", "nowhere")


def test_run_made_from_arrays_needs_them_again(tmp_path, refused):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)).astype("float32")
    y = (X[:, 0] > 0).astype(int)
    zoo.fit(
        "group_horseshoe", X, y, num_steps=20, num_samples=4, compile="off", progress_bar=False,
        out=tmp_path / "run", task="classification",
    )  # fmt: skip
    assert "dataset=" in refused("compress", "run")


def test_old_report_with_a_damaged_compression_is_written(digits_run, tmp_path, zoo_here):
    shutil.copytree(digits_run, tmp_path / "run")
    hostile = {"original": [1], "rates": "<script>", "layers": [3, {"layer": "<script>x</script>"}]}
    (tmp_path / "run" / "compression.json").write_text(json.dumps(hostile))
    assert zoo_here("report", "run").finished
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>x" not in page
    (tmp_path / "run" / "compression.json").write_text("[]")
    assert zoo_here("report", "run").finished
