"""No tensor is made beside the device of its inputs, and no step waits for the device."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zoo
from zoo.registry import list_models

SCRIPT = Path(__file__).with_name("accelerator.py")

DEVICES = [
    pytest.param("npy:0", id="fake"),
    pytest.param(
        "cuda:0",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
        id="cuda",
    ),
]


@functools.cache
def outcomes(device):
    environment = os.environ | {"PYTHONPATH": str(Path(zoo.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *(["cuda"] if device == "cuda:0" else [])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("estimator", ["weights", "local"])
@pytest.mark.parametrize("net", ["mlp", "convolutional"])
@pytest.mark.parametrize("method", list_models())
def test_step_prediction_and_log_joint_stay_on_the_device(method, net, estimator, device):
    assert outcomes(device)[f"{method}, {net}, {estimator}"] == [device]


@pytest.mark.parametrize("device", DEVICES)
def test_control_stray_tensor_is_caught(device):
    assert "device" in outcomes(device)["stray tensor"].lower()
    assert "Error" in outcomes(device)["stray tensor"]


@pytest.mark.parametrize("device", DEVICES)
def test_control_value_read_back_is_caught(device):
    expected = "DataDependent" if device == "npy:0" else "synchroniz"
    assert expected in outcomes(device)["reads back"]
