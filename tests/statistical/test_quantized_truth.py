"""Variational network quantization against quadrature and against the optimum of its objective."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import nn

import zoo
from zoo.distributions import SmoothLogUniform
from zoo.infer.svi.loop import SVI
from zoo.likelihoods import parse_likelihood
from zoo.registry import Recipe

CODEBOOK = (-0.2, 0.0, 0.2)
TAU = 0.075
#: Constants of the fitted divergence from a log-uniform prior.
K1, K2, K3 = 0.63576, 1.87320, 1.48695
NOISE = 0.1


class OneWeight(nn.Module):
    """f(x) = w x, for a batch of weights as well."""

    def __init__(self, start):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, x):
        return (x * self.weight).sum(-1, keepdim=True)


def log_uniform_divergence(loc, scale):
    log_alpha = 2 * math.log(scale) - math.log(loc**2 + 1e-30)
    bump = K1 / (1 + math.exp(K2 + K3 * log_alpha))
    return bump + 0.5 * np.logaddexp(0.0, -log_alpha)


def divergence(loc, scale):
    """The published approximation, written out."""
    windows = {c: math.exp(-((loc - c) ** 2) / (2 * TAU**2)) for c in CODEBOOK if c != 0}
    total = sum(w * log_uniform_divergence(loc - c, scale) for c, w in windows.items())
    return total + (1 - sum(windows.values())) * log_uniform_divergence(loc, scale)


def objective(parameters, y):
    """Negative ELBO of one observation y ~ N(w, NOISE²), up to a constant."""
    loc, scale = parameters[0], math.exp(parameters[1])
    return ((y - loc) ** 2 + scale**2) / (2 * NOISE**2) + divergence(loc, scale)


@pytest.mark.parametrize("y", [0.02, 0.16, 0.27])
def test_a_fit_reaches_the_optimum_of_the_published_objective(y):
    data = torch.tensor([y], dtype=torch.float64)
    likelihood = parse_likelihood(f"gaussian(noise={NOISE})").double()
    model = zoo.create(
        "quantized",
        OneWeight(y),
        likelihood=likelihood,
        num_data=1,
        priors={"weight": "Quantized([-0.2, 0, 0.2])"},
    )
    guide = model.guide(init_scale=0.03)
    svi = SVI(
        model,
        guide,
        torch.ones(1, 1, dtype=torch.float64),
        data,
        recipe=Recipe(num_steps=1500, batch_size=1, lr=0.01, schedule="cosine", kl_warmup=0.0),
        seed=0,
        num_particles=64,
        vectorize_particles=True,
    )
    svi.run(progress_bar=False)
    posterior = guide["weight"].base
    fitted = np.array([float(posterior.loc.detach()), float(posterior.log_scale.detach())])
    # The minimum in the basin of the start, inside the range that the weights are kept in.
    best = optimize.minimize(
        objective, fitted, args=(y,), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )
    share = math.exp(-1.5)
    assert abs(best.x[0]) <= 0.2 + share * math.exp(best.x[1]) + 1e-6
    # Gradients of 64 draws leave the objective within a thousandth of its minimum.
    assert objective(fitted, y) == pytest.approx(best.fun, abs=2e-3)


def proper_log_density(w, low, high):
    """Mixture over the code words of shifted smooth log-uniform densities."""
    spikes = [
        SmoothLogUniform(low, high).log_prob(torch.as_tensor(w - c)).numpy() for c in CODEBOOK
    ]
    return np.logaddexp.reduce(spikes, axis=0) - math.log(len(CODEBOOK))


def test_near_a_code_word_the_proper_posterior_is_where_the_fit_quantizes_to():
    """Quadrature of the proper counterpart: its mass gathers at the word the fit chooses."""
    low, high = torch.tensor(-7.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)

    def mass(a, b, y):
        def density(w):
            return math.exp(proper_log_density(np.float64(w), low, high)) * stats.norm.pdf(
                y, w, NOISE
            )

        points = [c for c in CODEBOOK if a < c < b]
        return integrate.quad(density, a, b, points=points, limit=400)[0]

    for y, word in ((0.02, 0.0), (0.16, 0.2), (0.27, 0.2), (-0.19, -0.2)):
        total = mass(-1.2, 1.2, y)
        near = mass(word - 0.1, word + 0.1, y)
        assert near > 0.5 * total
        likelihood = parse_likelihood(f"gaussian(noise={NOISE})").double()
        model = zoo.create(
            "quantized",
            OneWeight(y),
            likelihood=likelihood,
            num_data=1,
            priors={"weight": "Quantized([-0.2, 0, 0.2])"},
        )
        guide = model.guide(init_scale=0.01)
        codes = model.prior("weight").quantized(guide["weight"])
        assert float(codes) == word
