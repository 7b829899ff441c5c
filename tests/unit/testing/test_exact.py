"""The checks against exact answers pass for what is right and see what is wrong."""

import pyro
import pytest
import torch

from zoo.infer.svi.objective import Objective
from zoo.registry import get
from zoo.testing import exact, run_check

#: Divergences by quadrature, and from draws.
METHODS = ["mean_field", "spike_and_slab"]


@pytest.fixture(autouse=True)
def _local_parameters():
    with pyro.settings.context(module_local_params=True):
        yield


@pytest.mark.parametrize("method", METHODS)
def test_the_divergence_in_the_loss_is_the_integral_over_the_posterior(method):
    result = run_check(get(method), "kl_is_exact")
    assert result.status == "ok", result.detail


@pytest.mark.parametrize("weight", [0.98, 1.02])
@pytest.mark.parametrize("method", METHODS)
def test_two_percent_of_the_divergence_are_seen(monkeypatch, method, weight):
    class Weighted(Objective):
        def __init__(self, *parts, **options):
            super().__init__(*parts, **options)
            self.kl_weight = torch.full_like(self.kl_weight, weight)

    monkeypatch.setattr(exact, "Objective", Weighted)
    result = run_check(get(method), "kl_is_exact")
    assert result.status == "failed"
    assert "KL in the loss / exact KL" in result.detail
