"""A calibration that was interrupted continues to the same ranks."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zoo
from zoo.errors import ConfigError, StoreError
from zoo.truth import simulated_fits
from zoo.truth.calibration import _kept
from zoo.truth.kept_ranks import read_ranks

SETTINGS = {"num_simulations": 10, "num_steps": 3, "num_samples": 9, "executor": "serial"}


def ranks(**settings):
    return zoo.calibrate("mean_field", progress_bar=False, **(SETTINGS | settings)).ranks


def test_finished_simulations_are_not_run_again(tmp_path, monkeypatch):
    wanted = ranks()
    first = ranks(out=tmp_path / "sbc")
    files = sorted((tmp_path / "sbc").glob("*.json"))
    assert len(files) == 10
    for file in files[::2]:  # as if the run had been interrupted
        file.unlink()
    runs = []
    call = simulated_fits.NetworkFit.__call__
    monkeypatch.setattr(
        simulated_fits.NetworkFit, "__call__", lambda *a: (runs.append(1), call(*a))[1]
    )
    again = ranks(out=tmp_path / "sbc")
    assert len(runs) == 5
    for name, found in wanted.items():
        np.testing.assert_array_equal(first[name], found)
        np.testing.assert_array_equal(again[name], found)


def test_other_settings_are_other_simulations(tmp_path):
    for settings in ({}, {"num_steps": 4}, {"seed": 1}):
        ranks(out=tmp_path, **settings)
    assert len(list(tmp_path.glob("*.json"))) == 30


def test_guide_objects_have_no_files(tmp_path):
    """Their configuration has no name, so that ranks of two of them would be mixed."""
    simulator: Any = SimpleNamespace(fit=SimpleNamespace(config=SimpleNamespace(guide=None)))
    with pytest.raises(ConfigError, match="guide with a name"):
        _kept([], tmp_path / "sbc", simulator, [], [], "svi")
    assert not (tmp_path / "sbc").exists()


@pytest.mark.parametrize("text", ["{", "[1]", '{"y": "1"}', '{"y": 1.5}', '{"y": true}'])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "ranks.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"ranks\.json"):
        read_ranks(path)


def test_diverged_simulations_are_kept_as_such(tmp_path):
    path = tmp_path / "ranks.json"
    path.write_text("null")
    assert read_ranks(path) is None
