"""Monte Carlo errors of standard deviations."""

import numpy as np
import xarray

from zoo.diagnostics.sampling import mcse_sd


def alternating(rng, phi):
    """Four stationary autoregressive chains of 400 draws, with variance one."""
    draws = rng.normal(size=(4, 400))
    for t in range(1, 400):
        draws[:, t] = phi * draws[:, t - 1] + np.sqrt(1 - phi**2) * draws[:, t]
    return draws


def test_error_of_an_sd_is_its_spread_also_for_draws_that_alternate():
    """The mean of such draws is known better than from independent ones, the sd is not."""
    rng = np.random.default_rng(0)
    for phi in (-0.7, 0.0, 0.5):
        chains = [alternating(rng, phi) for _ in range(200)]
        stated = [
            float(mcse_sd(xarray.Dataset({"x": (("chain", "draw"), draws)}))["x"])
            for draws in chains
        ]
        actual = np.std([draws.std(ddof=1) for draws in chains])
        # The sd of 200 values is known within 5 %, and three errors are allowed.
        assert abs(np.mean(stated) / actual - 1) < 0.15
