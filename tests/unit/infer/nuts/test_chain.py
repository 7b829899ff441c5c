"""One chain: where it starts, what it tells while it runs, and how its time is divided."""

import numpy as np
import pytest

from zoo.errors import ZooError
from zoo.infer.nuts import chain
from zoo.infer.nuts.chain import JITTER, Settings, initial_point, run_chain


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
    found = run_chain(standard_normal, np.zeros(2), 0, settings, reported.append)
    assert reported == list(range(1, 81))
    assert found.draws.shape == (30, 2)
    assert {len(values) for values in found.stats.values()} == {30}
    assert found.warmup_seconds >= 0
    assert found.sampling_seconds >= 0


def test_steps_of_pyro_fill_trees_of_their_depth():
    settings = Settings(num_warmup=50, num_samples=100, engine="pyro", low_rank=False)
    stats = run_chain(standard_normal, np.zeros(2), 0, settings).stats
    # A tree of depth d takes between 2**(d - 1) and 2**d - 1 steps.
    assert (stats["n_steps"] <= 2.0 ** stats["tree_depth"] - 1).all()
    assert (stats["n_steps"] >= 2.0 ** (stats["tree_depth"] - 1)).all()


def test_a_chain_starts_within_the_jitter_of_its_centre():
    centre = np.array([5.0, -3.0])
    points = np.stack([initial_point(standard_normal, centre, seed) for seed in range(200)])
    assert (np.abs(points - centre) <= JITTER).all()
    # Uniform: the sd of a mean of 200 is 2 / sqrt(12 * 200).
    assert (np.abs(points.mean(0) - centre) < 5 * 2 * JITTER / np.sqrt(12 * 200)).all()
    assert np.ptp(points, axis=0).min() > 1.9 * JITTER


def test_points_of_infinite_density_are_tried_again():
    def half(flat):
        return (0.0, flat) if flat[0] > 0 else (-np.inf, flat)

    assert all(initial_point(half, np.zeros(1), seed)[0] > 0 for seed in range(10))
    with pytest.raises(ZooError, match="not finite at any of 100 initial points"):
        initial_point(half, np.array([-2.0]), 0)


def test_a_slope_that_is_not_finite_is_no_start():
    def steep(flat):
        return 0.0, np.where(flat > 0, flat, np.nan)

    assert initial_point(steep, np.zeros(1), 3)[0] > 0
