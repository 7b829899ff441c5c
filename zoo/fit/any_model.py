"""Fits of Pyro models that are no networks: the same training loop, draws and densities."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyro
import pyro.poutine as poutine
import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from guides.adapted import Adapted, ParametersOf, auto_guide
from guides.base import GUIDES, Guide
from guides.mean_field import MeanField
from zoo.errors import ConfigError
from zoo.fit.guides import GuideSource, parse_guide
from zoo.infer.recording import Mode
from zoo.infer.rng import seeded
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import elbo_draws
from zoo.infer.svi.schedule import child_seed
from zoo.registry import Recipe

#: Streams of random numbers derived from the seed of a fit.
DRAW_STREAM = 2_000_000_033
PRIOR_STREAM = 3_000_000_019
#: Draws behind the ELBO of a finished fit.
ELBO_DRAWS = 64

Values = dict[str, Tensor]


class BoundModel(nn.Module):
    """A Pyro model together with what it is called with.

    Parameters
    ----------
    model
        Any Pyro model; its ``pyro.param`` statements become parameters of this module.
    args, kwargs
        Its arguments, the observations among them.
    """

    def __init__(
        self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.model = model if isinstance(model, nn.Module) else ParametersOf(model)
        self.name = getattr(model, "__name__", type(model).__name__)
        self.summary = (inspect.getdoc(model) or "").split("\n\n")[0].replace("\n", " ")
        self.arguments = (tuple(args), dict(kwargs))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on its arguments."""
        given, named = self.arguments
        return self.model(*given, **named)

    def with_arguments(self, **kwargs: Any) -> "BoundModel":
        """Return the same model with other values of some named arguments."""
        other = BoundModel(self.model, self.arguments[0], self.arguments[1] | kwargs)
        other.name, other.summary = self.name, self.summary
        return other


@dataclass(frozen=True)
class FittedModel:
    """The fitted posterior of a Pyro model.

    Attributes
    ----------
    model
        The model with its arguments.
    full
        The same model on all of its data, if training subsamples them.
    guide
        The fitted guide.
    recipe, seed
        How it was trained.
    losses
        Loss of every optimizer step.
    seconds
        Time spent training.
    gradient_norms
        Norm of the gradient at some of the steps.
    num_samples
        Number of posterior draws.
    path
        The run directory, if the fit is stored in one.
    """

    model: BoundModel
    full: BoundModel
    guide: Guide
    recipe: Recipe
    seed: int
    losses: Tensor
    seconds: float
    gradient_norms: Tensor | None = None
    num_samples: int = 1000
    path: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    @torch.no_grad()
    def draws(self) -> Values:
        """Posterior draws by site, stacked in front; the same ones every time."""
        with (
            pyro.validation_enabled(False),
            pyro.settings.context(module_local_params=True),
            seeded(child_seed(self.seed, DRAW_STREAM), self.guide.some_tensor.device),
        ):
            drawn = full_size(self.guide).draw(self.num_samples)
        return {name: value.detach() for name, value in drawn.items()}

    @cached_property
    def elbo(self) -> tuple[float, float]:
        """The ELBO, and the standard error of its estimate."""
        estimates = elbo_draws(self.model, self.guide, num_draws=ELBO_DRAWS)
        return float(estimates.mean()), float(estimates.std()) / ELBO_DRAWS**0.5

    @property
    def subsamples(self) -> bool:
        """Whether even the full model subsamples a plate, so that densities are not known."""
        try:
            nodes = trace_of(self.full, {k: v[0] for k, v in self.draws.items()}).nodes
        except (RuntimeError, ValueError):  # draws of all elements do not fit a subsample
            return True
        return any(
            site_is_subsample(node) and len(node["value"]) < node["fn"].size
            for node in nodes.values()
            if node["type"] == "sample"
        )

    def summary(self) -> pd.DataFrame:
        """Summarise the posterior of every element of every site: mean, sd and quantiles."""
        rows = {}
        for name, draws in self.draws.items():
            columns = draws.double().reshape(len(draws), -1)
            for index in range(columns.shape[1]):
                label = name if draws.dim() == 1 else f"{name}[{_index(index, draws.shape[1:])}]"
                column = columns[:, index]
                rows[label] = {
                    "mean": float(column.mean()),
                    "sd": float(column.std()),
                    "5%": float(column.quantile(0.05)),
                    "50%": float(column.quantile(0.5)),
                    "95%": float(column.quantile(0.95)),
                }
        return pd.DataFrame.from_dict(rows, orient="index")


def _index(flat: int, shape: torch.Size) -> str:
    places = torch.unravel_index(torch.tensor(flat), shape)
    return ", ".join(str(int(place)) for place in places)


def full_size(guide: Guide) -> Guide:
    """Return the guide with all elements of plates that it subsamples in training."""
    return guide.full_size() if isinstance(guide, MeanField) else guide


def trace_of(model: BoundModel, values: Values) -> Any:
    """Run a model with its latent sites at given values."""
    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        return poutine.trace(poutine.condition(model, data=values)).get_trace()


def train_model(
    model: Callable[..., Any],
    *,
    guide: GuideSource = "mean_field",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
    recipe: Recipe,
    seed: int = 0,
    num_particles: int = 1,
    num_samples: int = 1000,
    compile: Mode = "auto",
    progress_bar: bool | None = None,
) -> FittedModel:
    """Fit a guide to a Pyro model, see `zoo.fit`."""
    bound = BoundModel(model, args, kwargs or {})
    full = bound.with_arguments(**(full_kwargs or {}))
    with seeded(child_seed(seed, PRIOR_STREAM), torch.device("cpu")):
        built = model_guide(bound, guide, recipe.init_scale)
    svi = SVI(bound, built, recipe=recipe, seed=seed, num_particles=num_particles, mode=compile)
    if compile == "auto":
        svi.choose_mode()
    losses = svi.run(progress_bar=progress_bar)
    return FittedModel(
        bound,
        full,
        built,
        recipe,
        seed,
        losses,
        svi.progress.seconds,
        svi.gradient_norms(),
        num_samples,
        settings={
            "model": bound.name,
            "guide": guide if isinstance(guide, str) else type(built).__name__,
            "num_particles": num_particles,
            "compile": svi.mode,
        },
    )


def model_guide(model: BoundModel, source: GuideSource, init_scale: float) -> Guide:
    """Return a guide of any model: by name, text, class, object or function."""
    if isinstance(source, Guide):
        return source
    try:
        if source == "factorised":
            source = MeanField
        family, options = parse_guide(source) if isinstance(source, str) else (source, {})
        if isinstance(family, type) and issubclass(family, Guide):
            if family in GUIDES.values() and not issubclass(family, MeanField):
                options["init"] = MeanField(model, init_scale=init_scale).medians()
            made: Guide = family(model, init_scale=init_scale, **options)
            return made
        if isinstance(family, type):
            return auto_guide(family, model, init={}, init_scale=init_scale, options=options)
        args, kwargs = model.arguments
        return Adapted(family, model, *args, **kwargs)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, ConfigError):
            raise
        name = source if isinstance(source, str) else getattr(source, "__name__", repr(source))
        message = " ".join(str(error).split())[:300]
        raise ConfigError(f"the guide {name!r} cannot be used: {message}.") from error


# ---------------------------------------------------------------------- densities of draws


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
def densities_of(model: BoundModel, draws: Values) -> Densities:
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
def predictive_of(model: BoundModel, draws: Values, seed: int) -> Values:
    """Draw every observed site given each draw of the latent ones, shape ``(draws, elements)``."""
    observed = [
        name
        for name, node in trace_of(model, {k: v[0] for k, v in draws.items()}).nodes.items()
        if is_observed(name, node, draws)
    ]

    def one(values: Values) -> Values:
        free = poutine.uncondition(model)
        trace: Any = poutine.trace(poutine.condition(free, data=values)).get_trace()
        nodes = trace.nodes
        return {name: nodes[name]["value"].reshape(-1) for name in observed}

    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        with seeded(seed, torch.device("cpu")):
            samples: Values = _over_draws(one, draws)
    return samples


@torch.no_grad()
def prior_of(model: BoundModel, num_samples: int, seed: int) -> tuple[Values, Values] | None:
    """Draw latent and observed sites from the prior; None if it is improper."""
    drawn: list[tuple[Values, Values]] = []
    with (
        pyro.validation_enabled(False),
        pyro.settings.context(module_local_params=True),
        seeded(seed, torch.device("cpu")),
    ):
        for _ in range(num_samples):
            try:
                trace: Any = poutine.trace(poutine.uncondition(model)).get_trace()
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
