"""Fits of Pyro models that are not networks: the same training loop, draws and densities."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyro
import torch
from pydantic import BaseModel, ConfigDict, Field
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from guides.adapted import Adapted, ParametersOf, auto_guide
from guides.base import GUIDES, Guide
from guides.mean_field import MeanField
from zoo.errors import ConfigError
from zoo.fit import store
from zoo.fit.config import dump_config, read_config, validated_config
from zoo.fit.guides import GuideSource, parse_guide
from zoo.fit.model_draws import Values, trace_of
from zoo.fit.store import RunDirectory
from zoo.fit.stored import checkpoints, load_states, states
from zoo.infer.rng import seeded
from zoo.infer.svi.bound import elbo_and_error
from zoo.infer.svi.ending import CURVES, Ending
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.schedule import child_seed
from zoo.registry import Recipe

#: Streams of random numbers derived from the seed of a fit.
DRAW_STREAM = 2_000_000_033
PRIOR_STREAM = 3_000_000_019
#: Steps to which schedules of a guide refer in a run until convergence, and its default budget.
NOMINAL_STEPS = 4000
MAX_STEPS = 400_000
#: Largest number of draws behind the ELBO of a finished fit; what one costs is not known.
ELBO_DRAWS = 256


class ModelConfig(BaseModel):
    """How a Pyro model is fitted; stored as ``config.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    #: None for a guide that is an object.
    guide: str | None = "mean_field"
    #: None for a run until convergence, within the budget.
    num_steps: int | None = Field(None, ge=1)
    max_steps: int = Field(MAX_STEPS, ge=1)
    max_seconds: float | None = Field(None, gt=0.0)
    lr: float = Field(0.02, gt=0.0)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    init_scale: float = Field(0.1, gt=0.0)
    grad_clip: float | None = Field(None, gt=0.0)
    num_particles: int = Field(1, ge=1)
    num_samples: int = Field(1000, ge=2)
    seed: int = Field(0, ge=0, lt=2**63)
    compile: Literal["auto", "off", "replay", "inductor"] = "auto"
    checkpoint_every: int = Field(500, ge=1)
    #: Checksum of the arguments of the model.
    arguments_sha256: str | None = None

    @property
    def recipe(self) -> Recipe:
        """The settings of the training loop."""
        return Recipe(
            num_steps=self.num_steps or NOMINAL_STEPS,
            until_converged=self.num_steps is None,
            max_steps=self.max_steps,
            max_seconds=self.max_seconds,
            lr=self.lr,
            schedule=self.schedule,
            kl_warmup=0.0,
            init_scale=self.init_scale,
            grad_clip=self.grad_clip,
        )


class BoundModel(nn.Module):
    """A Pyro model together with its arguments.

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
    config
        How it was trained.
    losses
        Loss of every optimizer step.
    seconds
        Time spent training.
    gradient_norms
        Norm of the gradient at some of the steps.
    path
        The run directory, if the fit is stored in one.
    ending
        Why training stopped, and how far it was from convergence.
    """

    model: BoundModel
    full: BoundModel
    guide: Guide
    config: ModelConfig
    losses: Tensor
    seconds: float
    gradient_norms: Tensor | None = None
    path: Path | None = None
    ending: Ending | None = None

    @cached_property
    @torch.no_grad()
    def draws(self) -> Values:
        """Posterior draws by site, stacked in front; the same ones every time."""
        with (
            pyro.validation_enabled(False),
            pyro.settings.context(module_local_params=True),
            seeded(child_seed(self.config.seed, DRAW_STREAM), self.guide.some_tensor.device),
        ):
            drawn = full_size(self.guide).draw(self.config.num_samples)
        return {name: value.detach() for name, value in drawn.items()}

    @cached_property
    def elbo(self) -> tuple[float, float]:
        """The ELBO, and the standard error of its estimate."""
        return elbo_and_error(self.model, self.guide, max_draws=ELBO_DRAWS)

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
        frames = []
        for name, draws in self.draws.items():
            flat = draws.double().reshape(len(draws), -1).cpu().numpy()
            low, middle, high = np.quantile(flat, [0.05, 0.5, 0.95], axis=0)
            columns = {"mean": flat.mean(0), "sd": flat.std(0, ddof=1)}
            columns |= {"5%": low, "50%": middle, "95%": high}
            labels = [
                f"{name}[{', '.join(map(str, index))}]" if index else name
                for index in np.ndindex(*draws.shape[1:])
            ]
            frames.append(pd.DataFrame(columns, index=labels))
        return pd.concat(frames)


def full_size(guide: Guide) -> Guide:
    """Return the guide with all elements of plates that it subsamples in training."""
    return guide.full_size() if isinstance(guide, MeanField) else guide


def prepare_model(
    model: Callable[..., Any],
    config: ModelConfig,
    *,
    guide: GuideSource | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
) -> tuple[FittedModel, SVI]:
    """Return a model with an untrained guide, and the training loop.

    Raises
    ------
    ConfigError
        If the configuration was stored with other arguments of the model, or with a guide object
        that is not given.
    """
    bound = BoundModel(model, args, kwargs or {})
    full = bound.with_arguments(**(full_kwargs or {}))
    source = config.guide if guide is None else guide
    if source is None:
        raise ConfigError("this run was made with a guide object: pass the same guide as guide=.")
    checksum = _checksum(bound.arguments)
    if config.arguments_sha256 not in (None, checksum):
        raise ConfigError(
            f"the arguments of the model {bound.name!r} are not those of the run: their SHA-256 is "
            f"{checksum}, not {config.arguments_sha256}. Pass the same args= and kwargs=."
        )
    with seeded(child_seed(config.seed, PRIOR_STREAM), torch.device("cpu")):
        built = model_guide(bound, source, config.init_scale)
    svi = SVI(
        bound,
        built,
        recipe=config.recipe,
        seed=config.seed,
        num_particles=config.num_particles,
        mode=config.compile,
    )
    if config.compile == "auto":
        svi.choose_mode()
    resolved = {"compile": svi.mode, "arguments_sha256": checksum}
    untrained = torch.empty(0), 0.0
    return FittedModel(bound, full, built, config.model_copy(update=resolved), *untrained), svi


def train_model(
    prepared: FittedModel,
    svi: SVI,
    directory: RunDirectory | None = None,
    progress_bar: bool | None = None,
) -> FittedModel:
    """Train to the end; checkpoints go into the directory, if there is one."""
    losses = svi.run(
        progress_bar=progress_bar,
        checkpoint_every=prepared.config.checkpoint_every,
        on_checkpoint=checkpoints(directory),
    )
    return replace(
        prepared,
        losses=losses,
        seconds=svi.progress.seconds,
        gradient_norms=svi.gradient_norms(),
        ending=svi.ending,
    )


def _checksum(arguments: Any) -> str:
    """Return a checksum of the arguments of a model, the values of tensors included."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            value = [*value.keys(), *value.values()]
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, list | tuple):
            digest.update(f"{len(value)}".encode())
            for part in value:
                add(part)
        elif value is None or isinstance(value, str | int | float):
            digest.update(repr(value).encode())
        else:  # an object whose value is not known
            digest.update(type(value).__name__.encode())

    add(arguments)
    return digest.hexdigest()


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


# ---------------------------------------------------------------------- stored fits


def is_model_run(directory: RunDirectory) -> bool:
    """Tell whether a run is that of a Pyro model instead of a method of the zoo."""
    directory.require_config()
    return "model" in read_config(directory.path / store.CONFIG)


def read_model_config(directory: RunDirectory) -> ModelConfig:
    """Return the configuration of a stored run."""
    return validated_config(ModelConfig, read_config(directory.path / store.CONFIG))


def write_model_config(prepared: FittedModel, directory: RunDirectory) -> None:
    """Write everything that a resumed run needs, except the model and its arguments."""
    directory.write_text(store.CONFIG, dump_config(prepared.config))


def write_fitted_model(fitted: FittedModel, directory: RunDirectory) -> None:
    """Write the tensors of model and guide, the losses and the gradient norms."""
    tensors = states(fitted.model, fitted.guide) | {"losses": fitted.losses}
    if fitted.gradient_norms is not None:
        tensors["gradient_norms"] = fitted.gradient_norms
    numbers = {"seconds": fitted.seconds}
    if fitted.ending is not None:
        numbers |= fitted.ending.numbers()
        tensors |= {k: torch.from_numpy(v) for k, v in fitted.ending.variables().items()}
    directory.write_tensors(store.GUIDE, tensors, numbers)


def read_fitted_model(prepared: FittedModel, directory: RunDirectory) -> FittedModel:
    """Return a stored fit; ``prepared`` is its model with the stored configuration."""
    tensors, numbers = directory.read_tensors(store.GUIDE)
    load_states(directory, tensors, prepared.model, prepared.guide)
    return replace(
        prepared,
        losses=tensors["losses"],
        seconds=numbers["seconds"],
        gradient_norms=tensors.get("gradient_norms"),
        path=directory.path,
        ending=Ending.from_numbers(
            numbers, {k: tensors[k].numpy() for k in CURVES if k in tensors}
        ),
    )
