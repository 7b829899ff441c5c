"""Posterior draws and the posterior predictive distribution, vectorised over draws."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from torch import Tensor

from guides.base import Guide
from zoo.errors import ConfigError
from zoo.infer.rng import seeded
from zoo.network.bnn import BNN

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Draws:
    """Posterior draws.

    Attributes
    ----------
    sites, slots
        Latent sites of the model, and values of the network's slots computed from them, with draws
        as the first dimension.
    buffers
        Statistics of normalisation layers for the draws, see `zoo.infer.normalisation`.
    """

    sites: dict[str, Tensor]
    slots: dict[str, Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.sites.values())))

    @property
    def values(self) -> dict[str, Tensor]:
        """All network values of the draws: slots and buffers."""
        return self.slots | self.buffers

    def first(self, num_samples: int) -> "Draws":
        """Return the first draws."""
        parts = (self.sites, self.slots, self.buffers)
        return Draws(*({k: v[:num_samples] for k, v in part.items()} for part in parts))


@torch.no_grad()
def draw_posterior(model: BNN, guide: Guide, num_samples: int, *, seed: int) -> Draws:
    """Draw from the guide and map the draws through the priors to values of the slots."""
    if num_samples < 1:
        raise ConfigError(f"num_samples must be at least 1. Got {num_samples}.")
    device = guide.some_tensor.device
    with (
        pyro.validation_enabled(False),
        pyro.settings.context(module_local_params=True),
        seeded(seed, device),
    ):
        # A point is its parameter, which has a gradient.
        sites = {name: value.detach() for name, value in guide.draw(num_samples).items()}
    return Draws(sites, slots_of(model, sites))


@torch.no_grad()
def slots_of(model: BNN, sites: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map draws of the latent sites, with draws as the first dimension, to values of the slots."""
    return torch.vmap(lambda one: slots_of_one(model, one))(sites)


def slots_of_one(model: BNN, sites: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map one draw of the latent sites to values of the slots, with gradients."""
    with pyro.validation_enabled(False), poutine.block(), poutine.condition(data=sites):
        return model.sample_slots()


def split_draws(values: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the values of every draw; draws are the first dimension."""
    num_draws = len(next(iter(values.values())))
    return [{name: value[index] for name, value in values.items()} for index in range(num_draws)]


@torch.no_grad()
def draw_prior(model: BNN, num_samples: int, *, seed: int) -> Draws | None:
    """Draw from the prior, or return None if it is improper."""
    device = next(model.parameters()).device
    drawn: list[dict[str, Tensor]] = []
    with pyro.validation_enabled(False), poutine.block(), seeded(seed, device):
        for _ in range(num_samples):
            try:
                drawn.append(_latent_values(model))
            except NotImplementedError:
                return None
    sites = {name: torch.stack([values[name] for values in drawn]) for name in drawn[0]}
    return Draws(sites, slots_of(model, sites))


def _latent_values(model: BNN) -> dict[str, Tensor]:
    nodes: dict[str, Any] = dict(poutine.trace(model.sample_slots).get_trace().nodes)
    return {
        name: site["value"]
        for name, site in nodes.items()
        if site["type"] == "sample" and not site["infer"].get("_deterministic")
    }


@dataclass(frozen=True)
class Prediction:
    """Posterior predictions for new rows, in the units of the data.

    Attributes
    ----------
    mean
        Predictive mean per row; for classes the index of the most probable class.
    samples
        Draws of the observation, shape ``(draws, rows)``.
    aleatoric, epistemic
        The two parts of the predictive uncertainty, per row: the noise of the observations, and the
        uncertainty that more data would reduce. Variances for numbers and counts; for classes
        entropies in nats, where the epistemic part is the mutual information between class and
        weights.
    probabilities, classes
        Class probabilities, shape ``(rows, classes)``, and names of the classes; only for classes.
    """

    mean: Array
    samples: Array
    aleatoric: Array
    epistemic: Array
    probabilities: Array | None = None
    classes: tuple[str, ...] = ()

    @property
    def total(self) -> Array:
        """Sum of aleatoric and epistemic uncertainty."""
        return self.aleatoric + self.epistemic

    @property
    def labels(self) -> list[str]:
        """Name of the most probable class of each row."""
        if self.probabilities is None:
            raise ConfigError("labels are for classes; this is a prediction of numbers.")
        return [self.classes[int(index)] for index in self.mean]

    def quantile(self, q: float | list[float]) -> Array:
        """Return predictive quantiles of numbers and counts, one column per row of the data."""
        if self.probabilities is not None:
            raise ConfigError("classes have no quantiles; use probabilities.")
        levels = np.atleast_1d(np.asarray(q, dtype=float))
        if not ((levels >= 0) & (levels <= 1)).all():
            raise ConfigError(f"quantiles are between 0 and 1. Got {q}.")
        return np.quantile(self.samples, q, axis=0)


@torch.no_grad()
def predictive(
    model: BNN,
    f: Tensor,
    noise: Tensor | None,
    *,
    seed: int,
    location: float = 0.0,
    scale: float = 1.0,
    classes: tuple[str, ...] = (),
) -> Prediction:
    """Convert network outputs to a prediction.

    Parameters
    ----------
    model, f
        The model, and outputs of shape ``(draws, rows, outputs)``.
    noise
        Draws of a Bayesian noise scale, shape ``(draws,)``, or None.
    seed
        Seed of the sampled observations.
    location, scale
        Units of the target: predictions are multiplied by ``scale`` and shifted by ``location``.
    classes
        Names of the classes; empty for numbers.
    """
    observation = observation_distribution(model, f, noise)
    with seeded(seed, f.device):
        samples = observation.sample()
    if classes:
        probabilities = class_probabilities(observation)
        mixture = probabilities.mean(0)
        total, aleatoric = _entropy(mixture), _entropy(probabilities).mean(0)
        return Prediction(
            mean=_numpy(mixture.argmax(-1)),
            samples=_numpy(samples),
            aleatoric=_numpy(aleatoric),
            epistemic=_numpy((total - aleatoric).clamp(min=0)),
            probabilities=_numpy(mixture),
            classes=classes,
        )
    means = observation.mean
    return Prediction(
        mean=_numpy(means.mean(0) * scale + location),
        samples=_numpy(samples * scale + location),
        aleatoric=_numpy(observation.variance.mean(0) * scale**2),
        epistemic=_numpy(means.var(0, correction=0) * scale**2),
    )


def observation_distribution(
    model: BNN, f: Tensor, noise: Tensor | None
) -> torch.distributions.Distribution:
    """Return the distribution of ``y`` given outputs ``(draws, rows, outputs)``.

    The noise is one number per draw, or one per draw and row.
    """
    if noise is not None and noise.dim() == 1:
        noise = noise.unsqueeze(-1)
    observation: torch.distributions.Distribution = model.likelihood.distribution(f, noise)
    return observation


def class_probabilities(observation: torch.distributions.Distribution) -> Tensor:
    """Return probabilities with one column per class, also for a Bernoulli."""
    if isinstance(observation, torch.distributions.Bernoulli):
        return torch.stack([1 - observation.probs, observation.probs], dim=-1)
    assert isinstance(observation, torch.distributions.Categorical)
    return observation.probs


@torch.no_grad()
def log_likelihood(model: BNN, f: Tensor, noise: Tensor | None, y: Tensor) -> Tensor:
    """Return log p(y | x, w) for every draw and row, shape ``(draws, rows)``."""
    value: Tensor = observation_distribution(model, f, noise).log_prob(y)
    if value.shape != (len(f), len(y)):
        raise ConfigError(
            f"the log-likelihood has shape {tuple(value.shape)} instead of {(len(f), len(y))}."
        )
    return value


def log_predictive_density(log_likelihoods: Tensor) -> Tensor:
    """Return the log of the average likelihood over draws, per row."""
    return log_likelihoods.logsumexp(0) - math.log(len(log_likelihoods))


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def _numpy(value: Tensor) -> Array:
    return value.cpu().double().numpy()


@torch.no_grad()
def site_log_priors(model: BNN, draws: Draws) -> dict[str, Tensor]:
    """Return the log prior density of every site, one number per draw."""
    with pyro.validation_enabled(False):
        return torch.vmap(lambda one: prior_of_one(model, one)[0])(draws.sites)


def prior_of_one(
    model: BNN, sites: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the log prior of every site and the values of the slots for one draw."""
    trace = poutine.trace(poutine.condition(model.sample_slots, data=sites)).get_trace()
    trace.compute_log_prob()
    nodes: dict[str, Any] = dict(trace.nodes)
    return {name: nodes[name]["log_prob_sum"] for name in sites}, nodes["_RETURN"]["value"]


@torch.no_grad()
def log_posterior(guide: Guide, draws: Draws) -> Tensor:
    """Return the log density of the guide, one number per draw."""
    with pyro.validation_enabled(False):
        return torch.vmap(guide.log_density)(draws.sites)
