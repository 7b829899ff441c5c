"""The ELBO of a fit against closed forms, and its error against its spread."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo.diagnostics.optimisation import tolerance_in_nats
from zoo.infer.svi import bound
from zoo.infer.svi.bound import MAX_DRAWS, MIN_DRAWS, SHARE, elbo_and_error

NOISE = 0.5


def regression(rows, seed=0):
    """Return a linear regression with a factorised guide and its data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    y += NOISE * torch.randn(rows, generator=generator, dtype=torch.float64)
    net = nn.Linear(3, 1).double()
    likelihood = f"gaussian(noise={NOISE})"
    model = zoo.create(
        "mean_field", net, likelihood=likelihood, num_data=rows, priors={"*": "Normal(0, 1)"}
    ).double()
    with torch.no_grad():
        model.net.weight.copy_(torch.tensor([[1.0, -1.0, 0.5]]))
        model.net.bias.zero_()
    return model, model.guide(init_scale=0.05).double(), x, y


def exact_elbo(guide, x, y):
    r"""E log N(y | Xw, s²) = log N(y | Xm, s²) - tr(X' X V) / 2 s², minus the Gaussian KL."""
    draws = guide.draw(400_000)
    flat = torch.cat([draws["weight"].reshape(-1, 3), draws["bias"].reshape(-1, 1)], 1)
    centres = guide.medians()
    mean = torch.cat([centres["weight"].reshape(-1), centres["bias"].reshape(-1)])
    scales = [p for n, p in guide.named_parameters() if "scale" in n]
    sd = torch.cat([s.detach().reshape(-1) for s in scales]).exp()
    # Names of parameters are details of the guide; its draws are not.
    torch.testing.assert_close(flat.std(0), sd, rtol=0.02, atol=0)
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    fit = torch.distributions.Normal(design @ mean, NOISE).log_prob(y).sum()
    spread = (design**2 @ sd**2).sum() / (2 * NOISE**2)
    kl = 0.5 * (sd**2 + mean**2 - 1 - 2 * sd.log()).sum()
    return float(fit - spread - kl)


@pytest.mark.parametrize("local", [False, True])
@torch.no_grad()
def test_the_estimate_is_the_closed_form_within_its_error(local):
    model, guide, x, y = regression(60)
    exact = exact_elbo(guide, x, y)
    value, error = elbo_and_error(model, guide, x, y, local=local)
    assert abs(value - exact) < 4 * error
    assert error < 1.5 * SHARE * tolerance_in_nats(60)


@pytest.mark.parametrize(("max_rows", "low"), [(10_000, 0.5), (2000, 0.4)])
@torch.no_grad()
def test_many_rows_are_read_once_or_sampled(monkeypatch, max_rows, low):
    """All 4050 rows in 41 chunks, or 2000 of them in 20, with two draws each."""
    model, guide, x, y = regression(4050)
    exact = exact_elbo(guide, x, y)
    monkeypatch.setattr(bound, "MAX_ENTRIES", 8000)
    monkeypatch.setattr(bound, "MAX_ROWS", max_rows)
    monkeypatch.setattr(bound, "ELBO_ROWS", 100)
    scores, errors = [], []
    for seed in range(20):
        monkeypatch.setattr(bound, "ROW_SEED", seed)
        monkeypatch.setattr(bound, "SEED", 1000 * seed)
        value, error = elbo_and_error(model, guide, x, y)
        scores.append((value - exact) / error)
        errors.append(error)
    # The sd of the scores is one if all rows are read. If half of them are, it is at least
    # sqrt(1/2). The error of 20 scores is 16 % for their sd and 1 / sqrt(20) for their mean.
    assert abs(np.mean(scores)) < 4 / math.sqrt(20)
    assert low < np.std(scores) < 1.7
    # The log density of a row has an sd of about sqrt(1/2).
    rows = 4050 * math.sqrt(0.5 / 2000)
    assert (np.mean(errors) > 0.8 * rows) == (max_rows < 4050)


def test_the_number_of_draws_depends_on_others(monkeypatch):
    """Skewed draws that decide themselves when to stop have a mean that is too high.

    ELBOs are -Gamma(0.5) times 20: mean -10, sd 14. The error that is aimed at is 3 nats.
    """
    numbers = []

    def skewed(model, guide, *batch, num_draws, local, seed):
        del model, guide, batch, local, seed
        numbers.append(num_draws)
        return torch.as_tensor(-20 * rng.gamma(0.5, size=num_draws))

    rng = np.random.default_rng(0)
    monkeypatch.setattr(bound, "elbo_draws", skewed)
    rows = torch.zeros(1000)
    found = np.array([elbo_and_error(None, None, rows) for _ in range(2000)])
    assert abs(found[:, 0].mean() + 10) < 4 * found[:, 0].std() / math.sqrt(2000)
    final = np.array(numbers[1::2])
    assert final.min() == MIN_DRAWS
    assert np.median(final) == pytest.approx((14.1 / 3) ** 2, rel=0.5)


@pytest.mark.parametrize(("sd", "number"), [(0.0, MIN_DRAWS), (1e6, MAX_DRAWS - 16)])
def test_the_work_is_bounded(monkeypatch, sd, number):
    numbers = []

    def draws(*args, num_draws, **options):
        numbers.append(num_draws)
        return sd * torch.randn(num_draws, dtype=torch.float64)

    monkeypatch.setattr(bound, "elbo_draws", draws)
    elbo_and_error(None, None, torch.zeros(10))
    assert numbers == [16, number]
