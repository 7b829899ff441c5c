import math
import signal

import pyro
import pytest
import torch
from torch import nn

import zoo
from zoo.fit.store import RunDirectory
from zoo.infer.svi.interrupt import StopSignal
from zoo.infer.svi.loop import SVI, DivergedError, EarlyStopping, Interrupted
from zoo.infer.svi.objective import Objective, estimate_elbo
from zoo.infer.svi.schedule import batch_rows
from zoo.registry import Recipe

#: `evidence` is exact and takes no steps.
METHODS = [method for method in zoo.list_models() if method != "evidence"]
RECIPE = Recipe(num_steps=12, batch_size=8, lr=0.01)


def problem(num_rows=20):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(num_rows, 3, generator=generator)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(num_rows, generator=generator)


def make_svi(method="mean_field", *, recipe=RECIPE, seed=0, init_scale=0.05, **options):
    x, y = problem()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = zoo.create(method, net, likelihood="gaussian(noise=0.5)", num_data=len(x))
    guide = model.guide(init_scale=init_scale)
    return SVI(model, guide, x, y, recipe=recipe, seed=seed, **options)


def held_out(**options):
    return EarlyStopping(*problem(6), **options)


def assert_same_parameters(svi, other):
    here, there = svi.objective.state_dict(), other.objective.state_dict()
    assert here.keys() == there.keys()
    for name in here:
        assert torch.equal(here[name], there[name]), name


def stopped_at(svi, step):
    """Run until a step, as a process that is killed right after a checkpoint."""
    states = []

    class Killed(Exception):
        pass

    def save(running):
        if running.progress.step == step:
            states.append(running.state())
            raise Killed

    with pytest.raises(Killed):
        svi.run(checkpoint_every=1, on_checkpoint=save)
    return states[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("step", [1, 4, 12])
def test_a_stored_state_continues_to_the_same_bits(tmp_path, method, step):
    stopping = held_out(every=3, patience=100)
    whole = make_svi(method, early_stopping=stopping)
    losses = whole.run()
    directory = RunDirectory.new(tmp_path / "run")
    state = stopped_at(make_svi(method, early_stopping=stopping), step)
    directory.write_tensors("checkpoint.safetensors", *state)
    continued = make_svi(method, early_stopping=stopping, seed=0)
    torch.manual_seed(1234)  # what the new process did before does not matter
    continued.load_state(*directory.read_tensors("checkpoint.safetensors"))
    assert continued.progress.step == step
    assert torch.equal(continued.run(), losses)
    assert_same_parameters(continued, whole)


def test_state_may_be_asked_for_outside_of_the_loop():
    whole, first, second = make_svi(), make_svi(), make_svi()
    whole.run()
    second.load_state(*first.state())
    torch.manual_seed(99)
    second.load_state(*second.state())
    second.run()
    assert_same_parameters(second, whole)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits_other_seed_others(method):
    one, same, other = (make_svi(method, seed=seed) for seed in (3, 3, 4))
    losses = [svi.run() for svi in (one, same, other)]
    assert_same_parameters(one, same)
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_training_gives_the_caller_s_random_numbers_back():
    before = torch.get_rng_state()
    svi = make_svi()
    svi.run()
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError):
        make_svi().run(checkpoint_every=3, on_checkpoint=lambda svi: 1 / 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_checkpoints_and_progress_bar_do_not_change_the_result(capsys):
    plain, watched = make_svi(), make_svi()
    plain.run(progress_bar=False)
    watched.run(progress_bar=True, checkpoint_every=1, on_checkpoint=lambda svi: svi.state())
    assert_same_parameters(plain, watched)
    assert "12/12" in capsys.readouterr().err


def test_schedules_reach_optimizer_and_objective():
    seen = []
    recipe = Recipe(num_steps=8, batch_size=8, lr=0.1, schedule="linear", kl_warmup=0.5)
    svi = make_svi(recipe=recipe)
    svi.run(
        checkpoint_every=1,
        on_checkpoint=lambda svi: seen.append((svi.optimizer.lr, float(svi.objective.kl_weight))),
    )
    rates, weights = zip(*seen[:-1], strict=True)  # the last call is after the last step
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1, 0.075, 0.05, 0.025])
    assert weights == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0])


def test_batches_of_an_epoch_average_to_the_full_loss():
    # With a posterior this narrow the loss is deterministic; batches of 8, 8 and 4 rows.
    svi = make_svi(init_scale=1e-12)
    objective: Objective = svi.objective.double()
    x, y = svi.batches.x.double(), svi.batches.y.double()
    with torch.no_grad(), pyro.settings.context(module_local_params=True):
        full = float(objective(x, y))
        total = 0.0
        for step in range(3):
            rows = batch_rows(len(x), 8, step, seed=0)
            total += len(rows) / len(x) * float(objective(x[rows], y[rows]))
    assert full == pytest.approx(-estimate_elbo(objective.model, objective.guide, x, y), rel=1e-6)
    assert total == pytest.approx(full, rel=1e-6)


def test_early_stopping_restores_the_best():
    recipe = Recipe(num_steps=2000, batch_size=20, lr=0.3, schedule="constant", kl_warmup=0.0)
    svi = make_svi(recipe=recipe, early_stopping=held_out(every=5, patience=3))
    model, guide = svi.objective.model, svi.objective.guide
    losses = svi.run()
    assert svi.progress.stopped
    assert svi.progress.evaluations_since_best == 3
    assert len(losses) == svi.progress.step < 2000
    assert len(losses) % 5 == 0
    best = -estimate_elbo(model, guide, *problem(6))
    assert best == pytest.approx(svi.progress.best_loss, rel=1e-6)


def test_early_stopping_waits_for_the_full_kl():
    recipe = Recipe(num_steps=40, batch_size=20, lr=0.01, kl_warmup=0.5)
    evaluated = []
    svi = make_svi(recipe=recipe, early_stopping=held_out(every=5, patience=100))
    svi.run(
        checkpoint_every=5,
        on_checkpoint=lambda svi: evaluated.append(math.isfinite(svi.progress.best_loss)),
    )
    assert evaluated[:-1] == [False] * 3 + [True] * 5  # the last call is after the last step


@pytest.mark.parametrize("first_bad", [1, 3, 12])
def test_a_loss_that_is_not_finite_names_the_step(monkeypatch, first_bad):
    svi = make_svi()
    forward, calls = Objective.forward, []

    def spoiled(self, x, y):
        calls.append(0)
        return forward(self, x, y) * (math.nan if len(calls) >= first_bad else 1.0)

    monkeypatch.setattr(Objective, "forward", spoiled)
    with pytest.raises(DivergedError, match=rf"not finite at step {first_bad}\. .*now 0\.01"):
        svi.run()


def test_a_last_update_that_spoils_everything_is_noticed():
    recipe = Recipe(num_steps=1, batch_size=20, lr=1e30, kl_warmup=0.0)
    with pytest.raises(DivergedError, match="at step 1"):
        make_svi(recipe=recipe).run()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_between_two_steps_with_a_checkpoint(number):
    before = signal.getsignal(number)
    whole, svi, states = make_svi(), make_svi(), []
    whole.run()

    def save(running):
        states.append(running.state())
        if running.progress.step == 4:
            signal.raise_signal(number)

    with pytest.raises(Interrupted):
        svi.run(checkpoint_every=2, on_checkpoint=save)
    assert signal.getsignal(number) is before
    assert states[-1][1]["step"] == svi.progress.step < 12
    continued = make_svi()
    continued.load_state(*states[-1])
    continued.run()
    assert_same_parameters(continued, whole)


def test_a_second_signal_interrupts_at_once():
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_convolutions_are_stored_channels_last_and_resume_to_the_same_bits():
    torch.manual_seed(0)
    x, y = torch.randn(20, 2 * 36), torch.randint(2, (20,))
    net = nn.Sequential(
        nn.Unflatten(1, (2, 6, 6)), nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )

    def make():
        model = zoo.create("group_horseshoe", net, likelihood="categorical", num_data=20)
        return SVI(model, model.guide(init_scale=0.05), x, y, recipe=RECIPE, seed=0)

    whole, first, second = make(), make(), make()
    weights = [p for p in whole.parameters if p.dim() == 4]
    assert weights
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    whole.run()
    stopped_at(first, 5)
    tensors, numbers = first.state()
    second.load_state(
        {k: v.clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}, numbers
    )
    second.run()
    assert_same_parameters(whole, second)
