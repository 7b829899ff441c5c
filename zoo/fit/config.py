"""`RunConfig`: the configuration of a run, written to ``config.yaml``."""

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from zoo.errors import ConfigError, ZooError, did_you_mean
from zoo.parsing.calls import plain_mapping, short
from zoo.registry import Entry, Recipe

#: Fields of one section: ``zoo fit --help`` lists them together. None: not a flag of ``zoo fit``.
_data, _model, _computation, _training = (
    partial(Field, json_schema_extra={"section": section})
    for section in ("Data", "Model", "Computation", "Training")
)

Config = TypeVar("Config", bound=BaseModel)

#: Fields of a recipe that are also fields of a configuration.
_RECIPE = [field.name for field in fields(Recipe) if field.name != "until_converged"]


class RunConfig(BaseModel):
    """The configuration of one fit. Each field is a flag of ``zoo fit``.

    Values that are None are defaults of the method. `resolved` fills them in, so that a stored
    configuration does not depend on later changes of defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str = Field(description="Name of a method, see 'zoo list'.")

    data: str | None = _data(None, description="Data set (see 'zoo data'), CSV or Parquet file.")
    target: str | None = _data(None, description="Column of the file to predict.")
    task: Literal["regression", "classification", "counts"] | None = _data(
        None, description="What to predict; inferred from the target by default."
    )
    missing: Literal["refuse", "impute", "drop"] = _data(
        "refuse", description="What to do with missing values."
    )
    ignore: tuple[str, ...] = _data((), description="Column of the file to leave out.")
    test_fraction: float = _data(0.2, ge=0.0, lt=1.0, description="Fraction of rows for testing.")
    data_sha256: str | None = Field(
        None,
        description="Checksum that the data must have.",
        json_schema_extra={"section": None},
    )

    net: str | dict[str, Any] | None = _model(
        "mlp",
        description="Network: mlp, mlp:64-100-10, linear, polynomial:3, lenet300, lenet5, "
        "cells:8-2-2, graph:path.yaml or module:path.py:function.",
    )
    likelihood: str | None = _model(
        None,
        description="Likelihood: gaussian, gaussian(noise=0.1), gaussian(noise=heteroscedastic), "
        "student_t(df=4), bernoulli, categorical or poisson; chosen by the task by default.",
    )
    priors: dict[str, Any] = _model(
        default_factory=dict,
        description="Prior of the slots that match a pattern, for example "
        "'*.weight=Normal(0, 1)'; a prior alone applies to all weights.",
    )
    bayesian: tuple[str, ...] | None = _model(
        None, description="Pattern of parameters to treat as Bayesian; the others are points."
    )
    guide: str | None = _model(
        "factorised",
        description="Family of the posterior: factorised, which follows the priors; full_rank, one "
        "Normal with all correlations, for small models; or a guide of pyro.infer.autoguide, for "
        "example 'AutoLowRankMultivariateNormal(rank=5)'.",
    )
    options: dict[str, Any] = _model(
        default_factory=dict,
        description="Settings of the method and of its guide, by name; see 'zoo show'.",
    )

    seed: int = _computation(
        0, ge=0, lt=2**63, description="Seed of the data split, initial weights, batches and noise."
    )
    start: int = _computation(
        0, ge=0, description="Use other initial weights, batches and noise with the same split."
    )
    restarts: int = _computation(
        0, ge=0, description="Number of further fits from other starts, to see if they agree."
    )
    device: str = _computation("auto", description="Device: auto, cpu, cuda, cuda:0, ...")
    dtype: Literal["float32", "float64"] = _computation("float32", description="Precision.")
    autocast: bool = _computation(False, description="Let the network compute in bfloat16.")
    num_threads: int | None = _computation(
        None, ge=1, description="Number of CPU threads; one for small problems by default."
    )

    num_steps: int | None = _training(
        None, ge=1, description="Number of optimizer steps; by default until convergence."
    )
    max_steps: int | None = _training(
        None, ge=1, description="Largest number of steps of a run until convergence."
    )
    max_seconds: float | None = _training(
        None, gt=0.0, description="Largest number of seconds of a run until convergence."
    )
    nominal_steps: int | None = _training(
        None,
        ge=1,
        description="Steps to which the fractions below refer in a run until convergence.",
    )
    batch_size: int | None = _training(
        None,
        ge=1,
        description="Number of rows per step; small networks until convergence take 512.",
    )
    lr: float | None = _training(
        None,
        gt=0.0,
        description="Learning rate at the start; small networks until convergence take three times "
        "that of the method.",
    )
    schedule: Literal["constant", "linear", "cosine"] | None = _training(
        None, description="Learning rate schedule."
    )
    pretrain: float | None = _training(
        None, ge=0.0, lt=1.0, description="Fraction of the steps, at the start, without the KL."
    )
    kl_warmup: float | None = _training(
        None,
        ge=0.0,
        le=1.0,
        description="Fraction of the steps over which the weight of the KL rises to one.",
    )
    init_scale: float | None = _training(
        None, gt=0.0, description="Standard deviation of the posterior at the start."
    )
    grad_clip: float | None = _training(None, gt=0.0, description="Maximum norm of the gradient.")
    num_particles: int = _training(1, ge=1, description="Number of posterior draws per step.")
    estimator: Literal["auto", "local", "weights"] = _training(
        "auto", description="What is sampled in a step: layer outputs (local) or weights."
    )
    compile: Literal["auto", "off", "replay", "inductor"] = _training(
        "auto", description="How steps are executed: replay records them, inductor compiles them."
    )
    validation_fraction: float = _training(
        0.0, ge=0.0, lt=1.0, description="Fraction of training rows held out for early stopping."
    )
    patience: int = _training(
        10, ge=1, description="Number of evaluations without improvement before stopping early."
    )
    num_samples: int = _training(100, ge=2, description="Number of posterior draws to store.")
    checkpoint_every: int = _training(500, ge=1, description="Steps between two checkpoints.")

    @field_validator("net", mode="before")
    @classmethod
    def _plain_net(cls, net: Any) -> Any:
        """Convert the mapping of a graph to what YAML would read: keys are text."""
        if net is None or isinstance(net, str):
            return net
        if not isinstance(net, Mapping):
            raise ConfigError(
                "the value of 'net' is not accepted: it is text like mlp:64-100-10 or the mapping "
                f"of a graph. Got {short(net)}."
            )
        return plain_mapping(net, "the mapping of a graph network", ConfigError)

    @field_validator("options", mode="after")
    @classmethod
    def _plain_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        return plain_mapping(options, "the mapping 'options'", ConfigError)

    @field_validator("guide", mode="after")
    @classmethod
    def _known_guide(cls, guide: str | None) -> str | None:
        if guide not in (None, "factorised", "full_rank"):
            from zoo.fit.guides import check_guide

            check_guide(str(guide))
        return guide

    @field_validator("priors", mode="after")
    @classmethod
    def _plain_priors(cls, priors: dict[str, Any]) -> dict[str, Any]:
        # A configuration without priors is read without importing torch.
        from zoo.priors import parse_priors

        return {pattern: str(prior) for pattern, prior in parse_priors(priors).items()}

    @model_validator(mode="before")
    @classmethod
    def _new_spellings(cls, values: Any) -> Any:
        """Convert configurations of earlier versions: some settings are options now."""
        if not isinstance(values, dict) or not isinstance(values.get("options") or {}, Mapping):
            return values
        values = dict(values)
        moved: dict[str, dict[str, Any]] = {}
        if isinstance(values.get("priors"), Mapping):
            from zoo.priors import parse_priors

            for pattern, prior in parse_priors(values["priors"]).items():
                for name, value in prior.options:
                    moved.setdefault(name, {})[pattern] = value
                family: Any = prior.family.cls
                for name in set(prior.family.moved) & set(moved) - set(dict(prior.options)):
                    # A later pattern without the parameter used its default.
                    moved[name][pattern] = family.options.model_fields[name].default
        options = dict(values.get("options") or {})
        for name, by_pattern in moved.items():
            if isinstance(options.get(name, {}), Mapping):
                options[name] = by_pattern | dict(options.get(name, {}))
        if values.get("guide") == "linear":
            values["guide"] = "factorised"
            options.setdefault("knots", 2)
            warnings.warn(
                "the guide 'linear' is now the option knots=2 of the method hypernetwork.",
                FutureWarning,
                stacklevel=2,
            )
        if options:
            values["options"] = options
        return values

    @model_validator(mode="after")
    def _one_precision(self) -> "RunConfig":
        if self.autocast and self.dtype == "float64":
            raise ConfigError("autocast computes in bfloat16: use it with dtype float32.")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> "RunConfig":
        for name in ("max_steps", "max_seconds", "nominal_steps"):
            if self.num_steps is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is for a run until convergence: leave num_steps out. Got "
                    f"num_steps={self.num_steps} and {name}={getattr(self, name)}."
                )
        return self

    def recipe(self, entry: Entry) -> Recipe:
        """Return the method's recipe, updated with the values of this configuration.

        Without a number of steps it is one until convergence.
        """
        given = {name: getattr(self, name) for name in _RECIPE}
        given |= {"until_converged": self.num_steps is None}
        if self.num_steps is None:
            given["num_steps"] = self.nominal_steps
        return replace(entry.recipe, **{k: v for k, v in given.items() if v is not None})

    def resolved(self, entry: Entry, **values: Any) -> "RunConfig":
        """Return a copy with the method's defaults and the given values filled in."""
        recipe = self.recipe(entry)
        filled = {name: getattr(recipe, name) for name in _RECIPE}
        if recipe.until_converged:
            filled |= {"num_steps": None, "nominal_steps": recipe.num_steps}
        else:
            filled |= {"max_steps": None, "max_seconds": None}
        return self.model_copy(update=filled | values)


def make_config(**values: Any) -> RunConfig:
    """Build a configuration; an invalid value raises a `ConfigError`."""
    return validated_config(RunConfig, values)


def validated_config(cls: type[Config], values: Mapping[str, Any]) -> Config:
    """Build a configuration of any class; an invalid value raises a `ConfigError`."""
    try:
        return cls(**values)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, ZooError):  # raised by a validator
            raise cause from None
        raise ConfigError(_explain(error, list(cls.model_fields))) from None


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a YAML configuration as a mapping; `make_config` checks its values."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {str(path)!r}: {error}") from None
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{str(path)!r} is not valid YAML: {problem}") from None
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise ConfigError(
            f"the configuration {str(path)!r} must be a mapping like 'method: mean_field'."
        )
    return dict(values)


def dump_config(config: BaseModel) -> str:
    """Return the YAML text of a configuration."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


def _explain(error: ValidationError, known: list[str]) -> str:
    """Return a message of one line about the first problem."""
    problem = error.errors(include_url=False)[0]
    name = ".".join(map(str, problem["loc"])) or "configuration"
    if problem["type"] == "extra_forbidden":
        return (
            f"unknown configuration key {name!r}.{did_you_mean(name, known)} "
            f"Known: {', '.join(known)}."
        )
    if problem["type"] == "missing":
        return f"the configuration needs a value for {name!r}."
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"the value of {name!r} is not accepted: {message}. Got {problem['input']!r:.80}."
