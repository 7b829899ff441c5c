"""Whether to compile: decided by measurement, leaving no trace in what is measured."""

import pytest
import torch
from torch import nn

import zoo
from zoo.infer.svi import mode as module
from zoo.infer.svi.mode import choose_mode
from zoo.infer.svi.objective import Objective

NET = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


@pytest.fixture
def problem():
    torch.manual_seed(0)
    model = zoo.create("mean_field", NET, likelihood="categorical", num_data=20)
    objective = Objective(model, model.guide(init_scale=0.1))
    return objective, torch.randn(20, 3), torch.randint(2, (20,))


@pytest.fixture
def speeds(monkeypatch):
    """Pretend how long plain, replayed and compiled steps take, in that order."""

    def pretend(*seconds):
        times = iter(seconds)
        monkeypatch.setattr(module, "_seconds", lambda step, batch: next(times))
        monkeypatch.setattr(module, "_compiled_seconds", lambda *arguments: next(times))

    return pretend


def test_a_short_run_never_waits_for_the_compiler(problem, speeds):
    speeds(0.01)  # a second question would end the test
    assert choose_mode(problem[0], problem[1:], num_steps=3000) == "auto"


@pytest.mark.parametrize(
    ("compiled", "expected"), [(1.7, "inductor"), (1.9, "auto"), (6.0, "auto")]
)
def test_a_long_run_is_compiled_if_that_was_measured_to_pay(problem, speeds, compiled, expected):
    speeds(2.4, 2.0, compiled)
    assert choose_mode(problem[0], problem[1:], num_steps=3000) == expected


def test_measuring_changes_nothing(problem):
    objective, x, y = problem
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    rng = torch.get_rng_state()
    choose_mode(objective, (x, y), num_steps=10)
    assert torch.equal(torch.get_rng_state(), rng)
    for name, value in objective.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in objective.parameters())
    assert objective.model.training


def test_what_cannot_be_compiled_is_left_to_the_run(problem, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(module, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(module, "_compiled_seconds", fail)
    assert choose_mode(problem[0], problem[1:], num_steps=10) == "auto"


def test_the_choice_is_part_of_the_stored_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(module, "WORTH_RATIO", 1e9)
    monkeypatch.setattr(module, "_compiled_seconds", lambda *arguments: 1.0)
    chosen = []

    from zoo.infer.svi import loop as svi

    class Spy(svi.GradientStep):
        def __init__(self, objective, mode, num_steps):
            chosen.append(mode)
            super().__init__(objective, "off", num_steps)

    monkeypatch.setattr(svi, "GradientStep", Spy)
    fitted = zoo.fit(
        "mean_field", data="diabetes", num_steps=5, num_samples=4, out=tmp_path / "run"
    )
    assert chosen == ["inductor"]
    assert fitted.config.compile == "inductor"
    assert "compile: inductor" in (tmp_path / "run" / "config.yaml").read_text()
