"""Draws of a Pyro model: their densities, predictions, and draws from the prior."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from zoo.infer.rng import seeded

Values = dict[str, Tensor]
#: A model that is called without arguments.
Model = Callable[[], Any]


class _Unobserved(UnconditionMessenger):
    """Samples the observed sites, and leaves deterministic ones alone.

    Pyro marks both as observed. Under `poutine.uncondition` a deterministic site inside a plate is
    sampled once for each element of the plate, so that its value has too many dimensions.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["infer"].get("_deterministic"):
            super()._pyro_sample(msg)


def unobserved(model: Model) -> Model:
    """Return the model with its observed sites sampled."""
    sampled: Model = _Unobserved()(model)
    return sampled


def trace_of(model: Model, values: Values) -> Any:
    """Run a model with its latent sites at given values."""
    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        return poutine.trace(poutine.condition(model, data=values)).get_trace()


@dataclass(frozen=True)
class Densities:
    """Log densities of draws.

    Attributes
    ----------
    log_prior
        One number per draw for each latent site.
    log_likelihood
        By observed site, shape ``(draws, elements)``.
    """

    log_prior: Values
    log_likelihood: Values

    @property
    def log_joint(self) -> Tensor:
        """The log joint, one number per draw."""
        parts = [value.double() for value in self.log_prior.values()]
        parts += [value.double().sum(1) for value in self.log_likelihood.values()]
        return torch.stack(parts).sum(0)


@torch.no_grad()
def densities_of(model: Model, draws: Values) -> Densities:
    """Return the log densities of draws under a model that runs on all of its data."""

    def one(values: Values) -> tuple[Values, Values]:
        trace = trace_of(model, values)
        trace.compute_log_prob()
        observed = {
            name: node["unscaled_log_prob"].reshape(-1)
            for name, node in trace.nodes.items()
            if is_observed(name, node, values)
        }
        return {name: trace.nodes[name]["log_prob_sum"] for name in values}, observed

    prior, likelihood = _over_draws(one, draws)
    return Densities(prior, likelihood)


@torch.no_grad()
def predictive_of(model: Model, draws: Values, seed: int) -> Values:
    """Draw every observed site given each draw of the latent ones, shape ``(draws, elements)``."""
    observed = [
        name
        for name, node in trace_of(model, {k: v[0] for k, v in draws.items()}).nodes.items()
        if is_observed(name, node, draws)
    ]

    def one(values: Values) -> Values:
        free = unobserved(model)
        trace: Any = poutine.trace(poutine.condition(free, data=values)).get_trace()
        nodes = trace.nodes
        return {name: nodes[name]["value"].reshape(-1) for name in observed}

    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        with seeded(seed, torch.device("cpu")):
            samples: Values = _over_draws(one, draws)
    return samples


@torch.no_grad()
def prior_of(model: Model, num_samples: int, seed: int) -> tuple[Values, Values] | None:
    """Draw latent and observed sites from the prior; None if it is improper."""
    drawn: list[tuple[Values, Values]] = []
    with (
        pyro.validation_enabled(False),
        pyro.settings.context(module_local_params=True),
        seeded(seed, torch.device("cpu")),
    ):
        for _ in range(num_samples):
            try:
                trace: Any = poutine.trace(unobserved(model)).get_trace()
            except NotImplementedError:
                return None
            sites = {
                name: node
                for name, node in trace.nodes.items()
                if node["type"] == "sample"
                and not site_is_subsample(node)
                and not node["infer"].get("_deterministic")
            }
            was_observed = {n: bool(s["infer"].get("was_observed")) for n, s in sites.items()}
            latent = {n: s["value"] for n, s in sites.items() if not was_observed[n]}
            observed = {n: s["value"].reshape(-1) for n, s in sites.items() if was_observed[n]}
            drawn.append((latent, observed))
    stacked = [
        {name: torch.stack([pair[part][name] for pair in drawn]) for name in drawn[0][part]}
        for part in (0, 1)
    ]
    return stacked[0], stacked[1]


def is_observed(name: str, node: Mapping[str, Any], latent: Mapping[str, Any]) -> bool:
    """Tell the data of a model from its latent sites and its deterministic ones."""
    return bool(
        node["type"] == "sample"
        and node["is_observed"]
        and name not in latent
        and not node["infer"].get("_deterministic")
    )


def _over_draws(one: Callable[[Values], Any], draws: Values) -> Any:
    """Map a function over draws: all at once, or one by one if the model does not allow that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.vmap(one, randomness="different")(draws)
    except (RuntimeError, ValueError, IndexError):
        count = len(next(iter(draws.values())))
        results = [one({name: value[i] for name, value in draws.items()}) for i in range(count)]
        return _stacked(results)


def _stacked(results: Sequence[Any]) -> Any:
    """Stack results of the same form: tensors, or mappings and tuples of them."""
    first = results[0]
    if isinstance(first, Mapping):
        return {name: _stacked([result[name] for result in results]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stacked(list(parts)) for parts in zip(*results, strict=True))
    return torch.stack(list(results))
