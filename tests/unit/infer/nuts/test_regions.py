"""Masses of the regions of chains, and barriers between them."""

import numpy as np
import pytest

from zoo.infer.nuts.regions import find_regions, log_mass

PRECISION = np.array([[2.0, -1.2], [-1.2, 1.0]])
EXACT = np.log(2 * np.pi) - 0.5 * np.log(np.linalg.det(PRECISION))


def gaussian(flat):
    return float(-0.5 * flat @ PRECISION @ flat), -PRECISION @ flat


def draws_of(number, seed=0):
    rng = np.random.default_rng(seed)
    draws = rng.multivariate_normal(np.zeros(2), np.linalg.inv(PRECISION), number)
    return draws, np.array([gaussian(draw)[0] for draw in draws])


def test_mass_of_a_gaussian_is_exact():
    """The optimal bridge of a density with itself has no variance."""
    estimates = [log_mass(gaussian, *draws_of(400, s), np.random.default_rng(s)) for s in range(20)]
    errors = np.array([value - EXACT for value, _ in estimates])
    assert np.abs(errors).max() < 0.1
    # The stated errors are those of the estimates, within the error of an sd of 20.
    assert np.mean([error for _, error in estimates]) == pytest.approx(errors.std(), rel=0.6)


def test_mass_of_a_skewed_density_is_that_of_quadrature():
    def gumbel(flat):
        return float(2 * flat[0] - np.exp(flat[0])), np.array([2 - np.exp(flat[0])])

    rng = np.random.default_rng(0)
    draws = np.log(rng.gamma(2.0, size=(4000, 1)))
    values = np.array([gumbel(draw)[0] for draw in draws])
    value, error = log_mass(gumbel, draws, values, rng)
    assert abs(value) < 5 * error < 0.2  # the integral is Gamma(2) = 1


def test_mass_is_unknown_with_few_draws():
    assert np.isnan(log_mass(gaussian, *draws_of(8), np.random.default_rng(0))).all()


def test_regions_have_masses_and_barriers():
    def two(flat):
        logs = np.array([-2 * (flat[0] + 5) ** 2, -2 * (flat[0] - 5) ** 2 + np.log(3)])
        return float(np.logaddexp(*logs)), np.zeros(1)

    rng = np.random.default_rng(1)
    draws = [rng.normal(side, 0.5, (200, 1)) for side in (-5, 5, 5)]
    values = [np.array([two(draw)[0] for draw in chain]) for chain in draws]
    found = find_regions(two, draws, values, 0)
    assert found.log_mass[1] - found.log_mass[0] == pytest.approx(np.log(3), abs=0.1)
    assert found.barriers[0, 1] > 30
    assert found.barriers[1, 2] == 0
    np.testing.assert_array_equal(found.barriers, found.barriers.T)
