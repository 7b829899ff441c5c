"""Captured steps: the same bits as uncaptured ones, whatever changes during training."""

import copy

import pytest
import torch
from torch import nn

import zoo
from zoo.infer.svi.capture import TIMED_STEPS, WORTH_STEPS, CapturedObjective, GradientStep
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective
from zoo.registry import Recipe, get, list_models


def network(normalised=False):
    layers = [nn.Linear(3, 6), nn.BatchNorm1d(6)] if normalised else [nn.Linear(3, 6)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(6, 2))


def problem(method, *, local=False, net=None, priors=None):
    torch.manual_seed(0)
    classifies = "classification" in get(method).tasks
    likelihood = "categorical" if classifies else "gaussian(noise=0.5)"
    net = net or (network() if classifies else nn.Linear(3, 1))
    model = zoo.create(method, net, likelihood=likelihood, num_data=20, priors=priors)
    objective = Objective(model, model.guide(init_scale=0.1), local=local).train()
    y = torch.randint(2, (20,))
    return objective, torch.randn(20, 3), y if classifies else y.float()


def fitted_parameters(method, mode, **options):
    """Train over epochs of batches of 8, 8 and 4 rows with a rising KL; return the parameters."""
    objective, x, y = problem(method, **options)
    recipe = Recipe(num_steps=30, batch_size=8, lr=0.01, kl_warmup=0.5)
    model, guide = objective.model, objective.guide
    local = options.get("local", False)
    SVI(model, guide, x, y, recipe=recipe, seed=0, local=local, mode=mode).run()
    return {**guide.state_dict(), **model.net.state_dict()}


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("method", list_models())
def test_replayed_training_ends_in_the_same_bits(method, local):
    plain = fitted_parameters(method, "off", local=local)
    replayed = fitted_parameters(method, "replay", local=local)
    for name, value in plain.items():
        assert torch.equal(value, replayed[name]), name


def test_priors_without_a_closed_form_are_captured_too():
    priors = {"*weight": "StudentT(3)", "*bias": "Normal(0, HalfCauchy(1))"}
    plain = fitted_parameters("mean_field", "off", priors=priors, local=True)
    replayed = fitted_parameters("mean_field", "replay", priors=priors, local=True)
    for name, value in plain.items():
        assert torch.equal(value, replayed[name]), name


def test_batch_normalisation_keeps_its_running_statistics():
    net = network(normalised=True)
    plain = fitted_parameters("mean_field", "off", net=net)
    replayed = fitted_parameters("mean_field", "replay", net=net)
    assert not torch.equal(plain["1.running_mean"], torch.zeros(6))
    for name, value in plain.items():
        assert torch.equal(value, replayed[name]), name


@pytest.mark.parametrize("method", list_models())
def test_weight_of_the_kl_is_an_input_not_a_constant(method):
    objective, x, y = problem(method)
    captured = CapturedObjective(objective)
    for weight in (1.0, 0.25, 0.0):
        objective.kl_weight.fill_(weight)
        torch.manual_seed(1)
        plain = objective(x, y)
        torch.manual_seed(1)
        assert torch.equal(captured.loss_and_gradients(x, y), plain.detach())


def test_recording_leaves_the_random_numbers_alone():
    objective, x, y = problem("mean_field")
    captured = CapturedObjective(objective)
    torch.manual_seed(1)
    captured.loss_and_gradients(x, y)
    after_recording = torch.rand(1)
    torch.manual_seed(1)
    captured.loss_and_gradients(x, y)
    assert torch.equal(torch.rand(1), after_recording)


def test_new_shapes_are_captured_anew():
    objective, x, y = problem("mean_field")
    captured = CapturedObjective(objective)
    for rows in (20, 7, 20):
        captured.loss_and_gradients(x[:rows], y[:rows])
    assert len(captured._graphs) == 2


class ReadsBack(nn.Module):
    """A network that looks at a value: it cannot be recorded."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        f = self.linear(x)
        return f if float(f.detach().sum()) > -1e30 else -f


def test_what_cannot_be_captured_runs_as_it_is_with_one_warning():
    objective, x, y = problem("mean_field", net=ReadsBack())
    step = GradientStep(objective, "replay", 10)
    with pytest.warns(UserWarning, match="cannot be captured") as caught:
        step(x, y)
    assert len(caught) == 1
    step(x, y)
    assert step.captured is None
    assert all(p.grad is not None for p in objective.guide.parameters())


def test_auto_does_not_capture_a_short_run():
    objective, x, y = problem("mean_field")
    step = GradientStep(objective, "auto", WORTH_STEPS - 1)
    for _ in range(TIMED_STEPS + 1):
        step(x, y)
    assert step.captured is None
    assert not step._seconds[False]


def test_auto_times_both_ways_before_it_decides():
    objective, x, y = problem("mean_field")
    step = GradientStep(objective, "auto", WORTH_STEPS)
    for _ in range(2 * TIMED_STEPS):
        step(x, y)
    assert [len(step._seconds[captured]) for captured in (False, True)] == [TIMED_STEPS] * 2
    assert not step._undecided


@pytest.mark.slow
@pytest.mark.parametrize("method", list_models())
def test_compiled_steps_agree_with_uncaptured_ones(method):
    objective, x, y = problem(method, local=True)
    other = copy.deepcopy(objective)
    torch.manual_seed(1)
    plain = objective(x, y)
    plain.backward()
    torch.manual_seed(1)
    compiled = CapturedObjective(other, "inductor").loss_and_gradients(x, y)
    torch.testing.assert_close(compiled, plain.detach(), rtol=1e-5, atol=1e-4)
    for a, b in zip(objective.guide.parameters(), other.guide.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
