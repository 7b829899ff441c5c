"""Chains start in all modes that paths from dispersed points find."""

import numpy as np
import pytest

from zoo.errors import ZooError
from zoo.infer.nuts.starts import JITTER, Path, barrier, choose, follow, group, jittered, spread_out


def standard_normal(flat):
    return float(-0.5 * flat @ flat), -flat


def test_a_chain_starts_within_the_jitter_of_its_centre():
    centre = np.array([5.0, -3.0])
    points = np.stack([jittered(standard_normal, centre, seed) for seed in range(200)])
    assert (np.abs(points - centre) <= JITTER).all()
    # Uniform: the sd of a mean of 200 is 2 / sqrt(12 * 200).
    assert (np.abs(points.mean(0) - centre) < 5 * 2 * JITTER / np.sqrt(12 * 200)).all()
    assert np.ptp(points, axis=0).min() > 1.9 * JITTER


def test_points_of_infinite_density_are_tried_again():
    def half(flat):
        return (0.0, flat) if flat[0] > 0 else (-np.inf, flat)

    assert all(jittered(half, np.zeros(1), seed)[0] > 0 for seed in range(10))
    with pytest.raises(ZooError, match="not finite at any of 100 initial points"):
        jittered(half, np.array([-2.0]), 0)


def test_a_slope_that_is_not_finite_is_no_start():
    def steep(flat):
        return 0.0, np.where(flat > 0, flat, np.nan)

    assert jittered(steep, np.zeros(1), 3)[0] > 0


def correlated(flat):
    precision = np.array([[2.0, -1.2], [-1.2, 1.0]])
    return float(-0.5 * flat @ precision @ flat), -precision @ flat


def funnel(flat):
    """Neal's funnel with ten arms, whose density is not bounded."""
    v, x = flat[0], flat[1:]
    value = -v * v / 18 - len(x) * v / 2 - 0.5 * np.exp(-v) * (x @ x)
    slope = -v / 9 - len(x) / 2 + 0.5 * np.exp(-v) * (x @ x)
    return float(value), np.r_[slope, -np.exp(-v) * x]


def two_modes(flat):
    """Normals of sd 1/2 at -5 and 5, with weights 1 and 3."""
    logs = np.array([-2 * (flat[0] + 5) ** 2, -2 * (flat[0] - 5) ** 2 + np.log(3)])
    shares = np.exp(logs - np.logaddexp(*logs))
    slope = shares @ np.array([-4 * (flat[0] + 5), -4 * (flat[0] - 5)])
    return float(np.logaddexp(*logs)), np.array([slope])


def test_a_path_ends_at_the_mode_and_its_draws_are_around_it():
    path = follow(correlated, np.array([8.0, -9.0]), np.random.default_rng(0))
    np.testing.assert_allclose(path.end, 0.0, atol=1e-3)
    # Marginal sds are 1.3 and 1.9.
    assert (np.abs(path.draws) < 8).all()


def test_a_path_into_a_spike_is_left_before_its_end():
    path = follow(funnel, np.full(11, 0.5), np.random.default_rng(0))
    assert path.end[0] < -20  # a million times as narrow as the bulk
    assert path.draws[:, 0].min() > -20


def test_there_is_no_path_from_a_point_of_no_density():
    def half(flat):
        return (-np.inf if flat[0] < 0 else 0.0), np.zeros(1)

    assert follow(half, np.array([-1.0]), np.random.default_rng(0)) is None


def test_a_barrier_is_the_drop_below_the_lower_end():
    ends = np.array([-5.0]), np.array([5.0])
    # The lower end has the log density 0, and the lines cross at 0 with -50 + log 4.
    drop = barrier(two_modes, *ends)
    assert 40 < drop <= 50 - np.log(4)
    assert barrier(correlated, np.array([3.0, 1.0]), np.array([-2.0, 4.0])) == 0.0


def test_paths_are_grouped_by_modes_and_chains_are_spread_over_them():
    rng = np.random.default_rng(0)
    paths = [follow(two_modes, np.array([x]), rng) for x in (-7.0, -2.0, 1.0, 3.0, 9.0)]
    groups = group(two_modes, paths, 4)
    assert [len(members) for members in groups] == [3, 2]  # the heavier one first
    starts = choose(groups, 5)
    assert [float(np.sign(start[0])) for start in starts] == [1, -1, 1, -1, 1]
    assert len({float(start[0]) for start in starts}) == 5


def test_groups_with_too_little_mass_are_left_out():
    def path(end, elbo):
        return Path(np.array([end]), np.array([[end]]), elbo)

    kept = group(two_modes, [path(5.0, 0.0), path(-5.0, -10.4)], 4)
    assert len(kept) == 2
    assert len(group(two_modes, [path(5.0, 0.0), path(-5.0, -10.6)], 4)) == 1


def test_draws_of_a_fit_are_spread_around_their_mean():
    points = np.random.default_rng(0).normal(3.0, 1.0, (50, 2))
    wide = spread_out(points)
    np.testing.assert_allclose(wide.mean(0), points.mean(0))
    np.testing.assert_allclose(wide.std(0), 3 * points.std(0))
