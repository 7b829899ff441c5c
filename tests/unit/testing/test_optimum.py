"""The proof of a method's own posterior sees a wrong objective."""

import pyro
import pytest
import torch

from zoo.infer.svi import loop
from zoo.registry import get
from zoo.testing import optimum, run_check


@pytest.mark.parametrize("weight", [0.3, 3.0])
def test_a_wrong_weight_of_the_divergence_is_seen(monkeypatch, weight):
    monkeypatch.setattr(loop, "kl_weight", lambda recipe, step: weight)
    with pyro.settings.context(module_local_params=True):
        result = run_check(get("mean_field"), "reaches_its_own_optimum")
    assert result.status == "failed"
    assert "can be raised by" in result.detail


def test_the_data_of_the_proof_have_the_noise_of_its_likelihood(monkeypatch):
    seen = {}

    def stop(model, guide, x, y, **options):
        seen.update(x=x, y=y)
        raise InterruptedError

    monkeypatch.setattr(optimum, "SVI", stop)
    with pyro.settings.context(module_local_params=True), pytest.raises(InterruptedError):
        optimum.reaches_its_own_optimum(get("mean_field"))
    x, y = seen["x"], seen["y"]
    generator = torch.Generator().manual_seed(0)
    inputs, noise = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((30, 2), 30)
    )
    torch.testing.assert_close(x, inputs)
    torch.testing.assert_close(y, x @ torch.tensor([1.0, -0.5]).to(x) + optimum.NOISE * noise)
