import math

import pytest
import torch

from zoo.infer.svi.schedule import batch_rows, child_seed, kl_weight, lr_factor
from zoo.registry import Recipe


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 1.0, 1.0, 0.5, 0.0]),
        ("cosine", [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0]),
    ],
)
def test_learning_rate_at_quarters_of_the_run(schedule, values):
    recipe = Recipe(num_steps=400, schedule=schedule)
    got = [lr_factor(recipe, step) for step in (0, 100, 200, 300, 400)]
    assert got == pytest.approx(values, abs=1e-15)


def test_learning_rate_is_positive_at_every_step():
    for schedule in ("constant", "linear", "cosine"):
        recipe = Recipe(num_steps=7, schedule=schedule)
        assert all(lr_factor(recipe, step) > 0 for step in range(7))


def test_kl_rises_linearly_during_the_warm_up():
    recipe = Recipe(num_steps=100, kl_warmup=0.2)
    got = [kl_weight(recipe, step) for step in (0, 5, 10, 19, 20, 21, 99)]
    assert got == pytest.approx([0.0, 0.25, 0.5, 0.95, 1.0, 1.0, 1.0], abs=1e-15)


def test_without_warm_up_the_kl_has_its_full_weight_at_once():
    assert kl_weight(Recipe(num_steps=100, kl_warmup=0.0), 0) == 1.0


def test_warm_up_over_the_whole_run():
    recipe = Recipe(num_steps=4, kl_warmup=1.0)
    assert [kl_weight(recipe, step) for step in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("num_rows", "batch_size"), [(10, 3), (12, 3), (7, 7), (5, 100), (1, 1), (11, 1)]
)
def test_batches_of_an_epoch_partition_the_rows(num_rows, batch_size):
    per_epoch = math.ceil(num_rows / batch_size)
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        batches = [batch_rows(num_rows, batch_size, step, seed=1) for step in steps]
        assert sorted(torch.cat(batches).tolist()) == list(range(num_rows))
        assert all(len(batch) == min(batch_size, num_rows) for batch in batches[:-1])
        assert len(batches[-1]) == num_rows - (per_epoch - 1) * min(batch_size, num_rows)


def test_batches_depend_on_step_and_seed_alone():
    forwards = [batch_rows(50, 8, step, seed=3) for step in range(30)]
    torch.manual_seed(99)
    backwards = [batch_rows(50, 8, step, seed=3) for step in reversed(range(30))]
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    assert not torch.equal(batch_rows(50, 8, 0, seed=3), batch_rows(50, 8, 0, seed=4))
    assert not torch.equal(batch_rows(50, 50, 0, seed=3), batch_rows(50, 50, 1, seed=3))


def test_batches_leave_the_global_random_numbers_alone():
    before = torch.get_rng_state()
    batch_rows(20, 5, 0, seed=12345)
    assert torch.equal(torch.get_rng_state(), before)


def test_child_seeds_differ_and_fit_a_generator():
    seeds = {child_seed(seed, stream) for seed in (0, 1, 2**63 - 1) for stream in range(100)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert child_seed(5, 7) == child_seed(5, 7)
