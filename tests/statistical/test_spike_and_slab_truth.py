"""Spike and slab against enumeration, and on a regression with a known support."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo.data import from_arrays
from zoo.diagnostics import diagnose
from zoo.fit.build import create
from zoo.infer.svi.loop import SVI
from zoo.likelihoods import parse_likelihood
from zoo.registry import Recipe

NOISE = 0.5


class OneWeight(nn.Module):
    """A product that also accepts a batch of weights, so that many draws are one call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return (x * self.weight).sum(-1, keepdim=True)


def exact_inclusion(y):
    """P(s = 1 | y) for y ~ N(s v, NOISE^2), v ~ N(0, 1), by enumeration of the switch."""
    on, off = (math.exp(-y * y / (2 * v)) / math.sqrt(v) for v in (1 + NOISE**2, NOISE**2))
    return on / (on + off)


@pytest.mark.parametrize("y", [0.0, 1.0, 1.5])
def test_posterior_of_one_weight_is_the_exact_one(y):
    """It is of the posterior's family; what is left is the bias of straight-through gradients.

    At a temperature of 0.1 that is below 0.06 in the probability.
    """
    likelihood = parse_likelihood(f"gaussian(noise={NOISE})").double()
    model = create("spike_and_slab", OneWeight(), likelihood=likelihood, num_data=1)
    guide = model.guide(init_scale=0.3)
    x, target = torch.ones(1, 1, dtype=torch.float64), torch.tensor([y], dtype=torch.float64)
    recipe = Recipe(num_steps=1500, batch_size=1, lr=0.02, kl_warmup=0.0)
    options = {"num_particles": 32, "vectorize_particles": True, "seed": 0}
    SVI(model, guide, x, target, recipe=recipe, **options).run(progress_bar=False)
    part = guide["weight"]
    assert abs(float(torch.sigmoid(part.log_odds.detach())) - exact_inclusion(y)) < 0.06
    precision = 1 + NOISE**-2
    assert abs(float(part.w.loc.detach()) - y / NOISE**2 / precision) < 0.03
    assert abs(float(part.w.scale.detach()) - precision**-0.5) < 0.01


@pytest.fixture(scope="module")
def sparse_regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 20))
    weights = np.zeros(20)
    weights[[1, 4, 9, 16]] = [1.5, -1.0, 0.7, -2.0]
    y = X @ weights + 0.5 * rng.normal(size=200)
    return from_arrays(X, y, X_test=X[:40], y_test=y[:40], task="regression")


@pytest.fixture(scope="module")
def fitted(sparse_regression):
    return zoo.fit(
        "spike_and_slab",
        data=sparse_regression,
        net="mlp:20-1",
        likelihood="gaussian(noise=0.5)",
        num_steps=2000,
        lr=0.03,
        seed=0,
        dtype="float64",
        progress_bar=False,
    )


def test_pruning_finds_the_support(fitted):
    part = fitted.assembly.guide["0.weight"]
    kept = part.group_scores() <= part.default_threshold
    assert kept.nonzero().flatten().tolist() == [1, 4, 9, 16]


def test_loss_agrees_with_the_densities_of_the_draws(fitted, sparse_regression):
    assert fitted.loss_is_elbo
    findings = {finding.check: finding for finding in diagnose(fitted.tree(sparse_regression))}
    assert findings["optimisation.objective"].level == "ok"
