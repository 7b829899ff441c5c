"""No tensor is made beside the device of its inputs, and no step waits for the device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from zoo.registry import list_models

SCRIPT = Path(__file__).with_name("fake_accelerator.py")


@pytest.fixture(scope="module")
def outcomes():
    environment = os.environ | {"PYTHONPATH": str(Path(zoo.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("estimator", ["weights", "local"])
@pytest.mark.parametrize("net", ["mlp", "convolutional"])
@pytest.mark.parametrize("method", list_models())
def test_step_prediction_and_log_joint_stay_on_the_device(outcomes, method, net, estimator):
    assert outcomes[f"{method}, {net}, {estimator}"] == ["npy:0"]


def test_control_stray_tensor_is_caught(outcomes):
    assert "DeviceMismatch" in outcomes["stray tensor"]


def test_control_value_read_back_is_caught(outcomes):
    assert "DataDependent" in outcomes["reads back"]
