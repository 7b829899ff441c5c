"""The proof of a method's own posterior sees a wrong objective."""

import pyro
import pytest

from zoo.infer.svi import loop
from zoo.registry import get
from zoo.testing import run_check


@pytest.mark.parametrize("weight", [0.3, 3.0])
def test_a_wrong_weight_of_the_divergence_is_seen(monkeypatch, weight):
    monkeypatch.setattr(loop, "kl_weight", lambda recipe, step: weight)
    with pyro.settings.context(module_local_params=True):
        result = run_check(get("mean_field"), "reaches_its_own_optimum")
    assert result.status == "failed"
    assert "can be raised by" in result.detail
