import numpy as np
import pytest
import torch

from zoo.fit.tree import _density_elbo


def estimate(rows, kept, seed=0, draws=50):
    generator = torch.Generator().manual_seed(seed)
    likelihoods = -torch.rand(rows, generator=generator, dtype=torch.float64).expand(draws, -1)
    noise = torch.randn(draws, generator=generator, dtype=torch.float64)
    stats = {"log_prior": 3 * noise, "log_q": torch.zeros(draws)}
    chosen = torch.linspace(0, rows - 1, kept).round().long()
    return likelihoods[0].sum(), _density_elbo(stats, likelihoods[:, chosen], rows)


def test_a_sample_of_rows_estimates_the_elbo_of_all_with_its_error():
    scores = []
    for seed in range(100):
        exact, found = estimate(2000, 200, seed)
        scores.append((found["density_elbo"] - float(exact)) / found["density_elbo_error"])
    # Over 100 estimates the sd of z-scores is one within 7 %, and their mean zero within 0.1.
    assert np.std(scores) == pytest.approx(1.0, abs=0.25)
    assert abs(np.mean(scores)) < 0.4


def test_all_rows_leave_only_the_error_of_draws():
    _, found = estimate(50, 50)
    assert found["density_elbo_error"] == pytest.approx(3 / np.sqrt(50), rel=0.3)


def test_an_unknown_density_gives_none():
    assert _density_elbo({"log_prior": torch.zeros(3)}, torch.zeros(3, 4), 4) == {}
