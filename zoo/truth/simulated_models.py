"""Data sets simulated from any Pyro model, and fits to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from guides.adapted import ParametersOf
from zoo.errors import ConfigError
from zoo.fit.any_model import BoundModel, ModelConfig, prepare_model, train_model
from zoo.fit.config import validated_config
from zoo.fit.guides import GuideSource, guide_text
from zoo.fit.model_draws import Values, densities_of, unobserved
from zoo.infer.rng import seeded
from zoo.truth.quantities import MAX_PARAMETERS, Quantities, Simulated, at_most
from zoo.truth.simulated_fits import Engine, fresh, nuts_draws

Array = NDArray[Any]


class Conditioned(nn.Module):
    """A Pyro model whose observed sites have other values."""

    def __init__(self, model: Callable[..., Any], data: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model if isinstance(model, nn.Module) else ParametersOf(model)
        self.data = dict(data)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        return poutine.condition(unobserved(self.model), data=self.data)(*args, **kwargs)


@dataclass(frozen=True)
class ModelFit:
    """Infers the posterior of one simulated data set."""

    model: Callable[..., Any]
    config: ModelConfig
    guide: GuideSource
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    engine: Engine

    def __call__(self, simulated: Simulated, seed: int) -> Quantities:
        """Return the true value and the posterior draws of every latent element."""
        model = Conditioned(self.model, simulated.data)
        bound = BoundModel(model, self.args, self.kwargs)
        draws = (self._by_svi if self.engine == "svi" else self._by_nuts)(model, seed)
        found: Quantities = {}
        for name, value in simulated.values.items():
            columns = draws[name].reshape(len(draws[name]), -1).T
            labels = [name] if value.dim() == 0 else [f"{name}[{i}]" for i in range(len(columns))]
            elements = zip(value.reshape(-1), columns, strict=True)
            found |= dict(zip(labels, elements, strict=True))
        found = at_most(MAX_PARAMETERS, found)
        true = {name: value[None] for name, value in simulated.values.items()}
        likelihoods = _log_likelihood(bound, true)[0], _log_likelihood(bound, draws)
        return found | {"log_likelihood": likelihoods}

    def _by_svi(self, model: Conditioned, seed: int) -> Values:
        config = self.config.model_copy(update={"seed": seed})
        prepared, svi = prepare_model(
            model, config, guide=fresh(self.guide), args=self.args, kwargs=self.kwargs
        )
        return train_model(prepared, svi, progress_bar=False).draws

    def _by_nuts(self, model: Conditioned, seed: int) -> Values:
        number = self.config.num_samples
        return nuts_draws(model, self.args, self.kwargs, num_draws=number, seed=seed)


class ModelSimulator:
    """Draws data sets from a Pyro model with its observed sites unobserved."""

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        guide: GuideSource | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        engine: Engine,
        settings: Mapping[str, Any],
        progress_bar: bool | None,
    ) -> None:
        guide = "mean_field" if guide is None else guide
        name = getattr(model, "__name__", type(model).__name__)
        given = {"model": name, "guide": guide_text(guide)}
        config = validated_config(ModelConfig, {**given, **settings})
        data: dict[str, Any] = {"args": tuple(args), "kwargs": dict(kwargs or {})}
        self.observed, self._shapes = _observed(BoundModel(model, **data))
        prepared, svi = prepare_model(model, config, guide=fresh(guide), **data)
        self.bound = prepared.model
        self.points = [n for n, p in self.bound.named_parameters() if p.requires_grad]
        if self.points:
            raise ConfigError(
                f"the model has a parameter without a prior, {self.points[0]!r}, so it cannot be "
                "simulated. Give it a prior."
            )
        self.device = torch.device("cpu")
        mode = config.model_copy(update={"compile": svi.mode})
        self.fit = ModelFit(model, mode, guide, data["args"], data["kwargs"], engine)

    @property
    def num_draws(self) -> int:
        """Posterior draws per simulation."""
        return self.fit.config.num_samples

    @property
    def num_parameters(self) -> int:
        """Number of latent elements."""
        return sum(value.numel() for value in self.simulate(0).values.values())

    @torch.no_grad()
    def simulate(self, seed: int) -> Simulated:
        """Draw latent and observed sites."""
        with (
            pyro.validation_enabled(False),
            pyro.settings.context(module_local_params=True),
            seeded(seed, self.device),
        ):
            try:
                trace: Any = poutine.trace(unobserved(self.bound)).get_trace()
            except NotImplementedError:
                raise ConfigError(
                    f"the prior of the model {self.bound.name!r} is improper, so it cannot be "
                    "sampled. Give a proper one."
                ) from None
        sites = {n: s for n, s in trace.nodes.items() if _is_random(s)}
        return Simulated(
            {n: s["value"].detach() for n, s in sites.items() if n not in self._shapes},
            {n: sites[n]["value"].detach().reshape(shape) for n, shape in self._shapes.items()},
        )

    def sizes(self, simulated: Simulated) -> dict[str, Array]:
        """Return the simulated data, whose size is judged."""
        return {name: value.double().numpy() for name, value in simulated.data.items()}


def _observed(model: BoundModel) -> tuple[dict[str, Array], dict[str, torch.Size]]:
    """Return the data of the observed sites, and their shapes."""
    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        nodes: dict[str, Any] = dict(poutine.trace(model).get_trace().nodes)
    for name, node in nodes.items():
        if node["type"] == "sample" and site_is_subsample(node):
            if len(node["value"]) < node["fn"].size:
                raise ConfigError(
                    f"the plate {name!r} is subsampled, so that a data set cannot be simulated. "
                    "Pass arguments with which the model runs on all of its data."
                )
    sites = {n: s for n, s in nodes.items() if _is_random(s) and s["is_observed"]}
    if not sites:
        raise ConfigError(f"the model {model.name!r} observes nothing that could be simulated.")
    for name, site in sites.items():
        if site["infer"].get("is_auxiliary"):
            raise ConfigError(
                f"the model has a factor, {name!r}, so that data cannot be simulated from it."
            )
    data = {name: site["value"].detach().double().numpy() for name, site in sites.items()}
    return data, {name: site["value"].shape for name, site in sites.items()}


def _is_random(site: Any) -> bool:
    is_sample = site["type"] == "sample" and not site_is_subsample(site)
    return bool(is_sample and not site["infer"].get("_deterministic"))


def _log_likelihood(model: BoundModel, draws: Values) -> Tensor:
    found = densities_of(model, draws).log_likelihood
    return torch.stack([value.double().sum(1) for value in found.values()]).sum(0)
