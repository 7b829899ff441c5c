"""One chain: where it starts, what it tells while it runs, and how its time is divided."""

import time

import numpy as np
import pytest

from zoo.infer.nuts import chain
from zoo.infer.nuts.chain import Settings, run_chain


def standard_normal(flat):
    return float(-0.5 * flat @ flat), -flat


def test_time_is_that_of_warmup_and_of_sampling(monkeypatch):
    times = iter([10.0, 11.0, 13.0, 16.0, 20.0])
    monkeypatch.setattr(chain.time, "process_time", lambda: next(times))
    reported = []
    clock = chain._Clock(Settings(num_warmup=2, num_samples=2), reported.append)
    for _ in range(4):
        clock.tick()
    assert reported == [1, 2, 3, 4]
    assert clock.seconds() == (3.0, 7.0)


@pytest.mark.parametrize("engine", ["nutpie", "pyro"])
def test_every_draw_is_reported_and_the_last_ones_are_kept(engine):
    reported = []
    settings = Settings(num_warmup=50, num_samples=30, engine=engine, low_rank=False)
    found = run_chain(standard_normal, np.ones(2), 0, settings, reported.append)
    assert reported == list(range(1, 81))
    assert found.draws.shape == (30, 2)
    assert {len(values) for values in found.stats.values()} == {30}
    assert found.warmup_seconds >= 0
    assert found.sampling_seconds >= 0


def test_steps_of_pyro_fill_trees_of_their_depth():
    settings = Settings(num_warmup=50, num_samples=100, engine="pyro", low_rank=False)
    stats = run_chain(standard_normal, np.ones(2), 0, settings).stats
    # A tree of depth d takes between 2**(d - 1) and 2**d - 1 steps.
    assert (stats["n_steps"] <= 2.0 ** stats["tree_depth"] - 1).all()
    assert (stats["n_steps"] >= 2.0 ** (stats["tree_depth"] - 1)).all()


@pytest.mark.parametrize("engine", ["nutpie", "pyro"])
def test_a_chain_is_stopped_when_its_time_is_over(engine):
    settings = Settings(num_warmup=10**7, num_samples=10, engine=engine, max_seconds=0.3)
    found = run_chain(standard_normal, np.ones(2), 0, settings)
    assert found.draws.shape == (0, 2)
    assert 0 < found.num_done < 10**7


def test_a_stopped_chain_keeps_its_draws():
    settings = Settings(num_warmup=20, num_samples=10**7, max_seconds=0.5)
    found = run_chain(standard_normal, np.ones(2), 0, settings)
    assert 0 < len(found.draws) < 10**7
    assert {len(values) for values in found.stats.values()} == {len(found.draws)}


def test_a_slow_trajectory_is_stopped_before_its_end():
    """At depth 10 a draw would take 10 s."""
    calls = []

    def slow(flat):
        calls.append(time.sleep(0.01))
        return standard_normal(1e-9 * flat)

    settings = Settings(num_warmup=20, num_samples=4, max_seconds=0.2)
    run_chain(slow, np.ones(2), 0, settings)
    assert len(calls) < 500
