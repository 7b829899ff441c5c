"""Runs that end by themselves, with constants that let them pass all phases in few steps."""

import math
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import zoo
from zoo.infer.svi import convergence, converging, monitor
from zoo.infer.svi.converging import DECAY, ConvergingCourse, end_of_phases
from zoo.infer.svi.ending import Ending
from zoo.infer.svi.loop import SVI, EarlyStopping
from zoo.registry import Recipe

METHODS = [method for method in zoo.list_models() if method != "evidence"]
RECIPE = Recipe(num_steps=8, batch_size=8, lr=0.01, until_converged=True, max_steps=60)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(convergence, "MIN_SPAN", 4)
    monkeypatch.setattr(converging, "EVERY", 1)
    monkeypatch.setattr(converging, "FINAL_VALUES", 4)
    monkeypatch.setattr(monitor, "MIN_VALUES", 4)
    monkeypatch.setattr(monitor, "DRAWS", 8)


@pytest.fixture
def easy(monkeypatch):
    """A tolerance that every run reaches at its first opportunity."""
    monkeypatch.setattr(converging, "tolerance_in_nats", lambda rows: 1e9)
    monkeypatch.setattr(converging, "OUTPUT_SDS", 1e9)


@pytest.fixture
def hard(monkeypatch):
    """A tolerance that no run reaches."""
    monkeypatch.setattr(converging, "tolerance_in_nats", lambda rows: 1e-9)


def problem(num_rows=20):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(num_rows, 3, generator=generator)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(num_rows, generator=generator)


def make_svi(method="mean_field", *, recipe=RECIPE, **options):
    x, y = problem()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = zoo.create(method, net, likelihood="gaussian(noise=0.5)", num_data=len(x))
    own = zoo.registry.get(method).recipe
    recipe = replace(recipe, schedule=own.schedule, pretrain=own.pretrain, kl_warmup=own.kl_warmup)
    return SVI(model, model.guide(init_scale=0.05), x, y, recipe=recipe, seed=0, **options)


def states_of(svi):
    """Run to the end; return the state after every step, and the last one."""
    states = []
    svi.run(checkpoint_every=1, on_checkpoint=lambda running: states.append(copied(running)))
    return states


def copied(svi):
    tensors, numbers = svi.state()
    return {k: v.clone() for k, v in tensors.items()}, dict(numbers)


def assert_same(svi, other):
    here, there = svi.objective.state_dict(), other.objective.state_dict()
    for name in here:
        assert torch.equal(here[name], there[name]), name
    assert torch.equal(svi.progress.losses.all(), other.progress.losses.all())
    ours, theirs = svi.ending.attributes(), other.ending.attributes()
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_converges_and_continues_to_the_same_bits(method, easy):
    whole = make_svi(method)
    states = states_of(whole)
    assert whole.ending.reason == "converged"
    assert whole.ending.steps == len(whole.progress.losses.all()) < RECIPE.max_steps
    # The steps before and at looks, and the last one. The last state is that of a finished run.
    looks = whole.ending.curves["look_step"].tolist()
    chosen = {0, *(step + d for step in looks for d in (-2, -1)), len(states) - 2}
    for index in sorted(chosen):
        continued = make_svi(method)
        torch.manual_seed(1234)
        continued.load_state(*states[index])
        continued.run()
        assert_same(continued, whole)


@pytest.mark.parametrize("method", ["mean_field", "laplace", "swag"])
def test_a_budget_that_runs_out_is_the_reason(method, hard):
    svi = make_svi(method)
    losses = svi.run()
    assert svi.ending.reason == "budget"
    assert len(losses) == svi.ending.steps == 60
    assert svi.ending.remaining > svi.ending.tolerance


def test_seconds_are_a_budget(hard):
    svi = make_svi(recipe=replace(RECIPE, max_seconds=1e-9))
    assert len(svi.run()) == 1
    assert svi.ending.reason == "budget"
    assert not math.isfinite(svi.ending.remaining)


def test_held_out_rows_still_stop_a_run(hard, monkeypatch):
    stopping = EarlyStopping(*problem(6), every=2, patience=1)
    svi = make_svi(early_stopping=stopping, recipe=replace(RECIPE, lr=3.0))
    svi.run()
    assert svi.ending.reason == "early stopping"
    assert svi.ending.steps < 60


def test_phases_end_before_the_first_look():
    plain, spike = (make_svi(name).objective.guide for name in ("mean_field", "spike_and_slab"))
    recipe = replace(RECIPE, num_steps=1000, pretrain=0.1, kl_warmup=0.3)
    assert end_of_phases(recipe, plain, 0.0) == 400
    assert end_of_phases(recipe, spike, 0.0) == 1000  # its temperature falls until then
    no_phases = replace(recipe, pretrain=0.0, kl_warmup=0.0)
    assert end_of_phases(no_phases, plain, 0.0) == 250


def test_the_temperature_stays_at_its_end(easy):
    svi = make_svi("spike_and_slab")
    seen = []
    advance = type(svi.objective.guide).advance
    guide = svi.objective.guide
    guide.advance = lambda progress: (seen.append(progress), advance(guide, progress))
    svi.run()
    assert max(seen) == 1.0
    assert seen[8:] == [1.0] * (len(seen) - 8)


def test_snapshots_are_taken_after_convergence(easy):
    svi = make_svi("swag")
    svi.run()
    last = svi.ending.curves["look_step"][-1]
    assert svi.ending.steps == last + round(0.5 * RECIPE.num_steps)
    assert not svi.ending.averaged
    assert int(svi.objective.guide.num_updates) == svi.ending.steps - last


def test_the_learning_rate_falls_by_rounds_and_at_the_end_of_the_budget(easy):
    svi = make_svi()
    course = svi.course
    assert isinstance(course, ConvergingCourse)
    assert course.lr(10) == RECIPE.lr
    course.round = 2
    assert course.lr(10) == pytest.approx(RECIPE.lr * 0.09)
    assert course.lr(60 - round(60 * DECAY / 2)) == pytest.approx(RECIPE.lr * 0.09 / 2, rel=0.1)


def test_an_average_that_is_worse_is_not_used(easy):
    svi = make_svi()
    svi.run()
    course, parameters = svi.course, [p.detach().clone() for p in svi.parameters]
    course.average.count = 2
    course.average.values = [p + 5.0 for p in parameters]
    course._settle(svi)
    assert not course.averaged
    for parameter, value in zip(svi.parameters, parameters, strict=True):
        assert torch.equal(parameter, value)


def test_the_bar_shows_what_is_missing(hard, capsys):
    make_svi().run(progress_bar=True)
    shown = capsys.readouterr().err
    assert "60step" in shown or "step" in shown
    course = make_svi().course
    assert course.summary() == "round 1, remaining ? of 1e-09 nats, at most 60 steps"


def test_an_ending_is_stored_as_numbers():
    ending = Ending("budget", 7, 1.5, remaining=2.5, averaged=True, rounds=3)
    again = Ending.from_numbers(ending.numbers())
    assert str(again) == str(ending)
    assert Ending.from_numbers({"seconds": 1.0}) is None


def mean_of(y):
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 2.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_the_end_is_the_posterior_of_a_conjugate_model(monkeypatch):
    monkeypatch.undo()
    y = torch.linspace(-1.0, 3.0, 30, dtype=torch.float64)
    fitted = zoo.fit(mean_of, args=(y,), lr=0.05, progress_bar=False)
    assert fitted.ending.reason == "converged"
    precision = 30 + 1 / 4
    location = fitted.guide.medians()["mu"]
    assert abs(float(location) - float(y.sum()) / precision) < 0.3 / math.sqrt(precision)
    # The guide can be the posterior, so the ELBO is the evidence.
    joint = torch.distributions.MultivariateNormal(
        torch.zeros(30, dtype=torch.float64),
        torch.eye(30, dtype=torch.float64) + 4.0,
    )
    evidence = float(joint.log_prob(y))
    assert evidence - fitted.ending.tolerance < fitted.elbo[0] < evidence + 4 * fitted.elbo[1]
