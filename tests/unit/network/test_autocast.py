"""The network in bfloat16, everything around it in float32."""

import pytest
import torch

import zoo
from zoo.errors import ConfigError
from zoo.fit.config import make_config
from zoo.infer.svi.capture import CapturedObjective
from zoo.infer.svi.objective import Objective, site_divergences
from zoo.network.nets import lenet5, mlp

CASES = {"mlp": (lambda: mlp([12, 16, 3]), 12), "lenet5": (lambda: lenet5((1, 16, 16), 3), 256)}


def objectives(name, local):
    torch.manual_seed(0)
    build, num_features = CASES[name]
    net = build()
    made = []
    for autocast in (False, True):
        model = zoo.create(
            "group_horseshoe", net, likelihood="categorical", num_data=64, autocast=autocast
        )
        made.append(Objective(model, model.guide(init_scale=0.05), local=local))
    return made, torch.randn(64, num_features), torch.randint(3, (64,))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_only_the_network_loses_digits(name, local):
    (exact, rough), x, y = objectives(name, local)
    losses = []
    for objective in (exact, rough):
        objective.kl_weight.zero_()  # beside the divergence of a network nothing could be seen
        torch.manual_seed(1)
        loss = objective(x, y)
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(p.grad.dtype == torch.float32 for p in objective.guide.parameters())
        losses.append(float(loss.detach()))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)  # bfloat16 has 8 bits, 0.4 %


def test_divergences_are_the_same_to_the_last_bit():
    (exact, rough), _, _ = objectives("mlp", local=False)
    terms = []
    for objective in (exact, rough):
        torch.manual_seed(1)
        terms.append(site_divergences(objective.model.sample_slots, objective.guide))
    for name, (kl, _) in terms[0].items():
        assert kl.dtype == torch.float32
        assert torch.equal(kl, terms[1][name][0])


def test_outputs_have_the_precision_of_the_inputs():
    (_, rough), x, _ = objectives("mlp", local=False)
    assert rough.model(x).dtype == torch.float32


def test_captured_steps_keep_autocast():
    (_, rough), x, y = objectives("mlp", local=True)
    torch.manual_seed(1)
    plain = rough(x, y).detach()
    torch.manual_seed(1)
    assert torch.equal(CapturedObjective(rough).loss_and_gradients(x, y), plain)


def test_autocast_and_double_precision_exclude_each_other():
    with pytest.raises(ConfigError, match="dtype float32"):
        make_config(method="mean_field", autocast=True, dtype="float64")


def test_a_run_in_bfloat16_learns():
    fitted = zoo.fit("mean_field", data="diabetes", autocast=True, num_steps=300, num_samples=20)
    assert fitted.losses[-50:].mean() < fitted.losses[:50].mean()
