"""`RunConfig`: everything that decides a run, validated once, written to ``config.yaml``."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from zoo.errors import ConfigError, ZooError, did_you_mean
from zoo.parsing.calls import plain_mapping, short
from zoo.registry import Entry, Recipe


class RunConfig(BaseModel):
    """The configuration of one fit.

    Values that are None take the method's default; `resolved` fills them in, so that a stored
    configuration repeats its run even after a default has changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str
    data: str | None = None
    target: str | None = None
    task: Literal["regression", "classification", "counts"] | None = None
    missing: Literal["refuse", "impute", "drop"] = "refuse"
    ignore: tuple[str, ...] = ()
    test_fraction: float = Field(0.2, ge=0.0, lt=1.0)
    data_sha256: str | None = None

    net: str | dict[str, Any] | None = "mlp"
    likelihood: str | None = None
    priors: dict[str, Any] = Field(default_factory=dict)
    bayesian: tuple[str, ...] | None = None
    guide: Literal["factorised", "full_rank", "linear"] = "factorised"
    options: dict[str, Any] = Field(default_factory=dict)

    seed: int = Field(0, ge=0, lt=2**63)
    start: int = Field(0, ge=0)
    restarts: int = Field(0, ge=0)
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    autocast: bool = False
    num_threads: int | None = Field(None, ge=1)

    num_steps: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    lr: float | None = Field(None, gt=0.0)
    schedule: Literal["constant", "linear", "cosine"] | None = None
    pretrain: float | None = Field(None, ge=0.0, lt=1.0)
    kl_warmup: float | None = Field(None, ge=0.0, le=1.0)
    init_scale: float | None = Field(None, gt=0.0)
    grad_clip: float | None = Field(None, gt=0.0)
    num_particles: int = Field(1, ge=1)
    estimator: Literal["auto", "local", "weights"] = "auto"
    compile: Literal["auto", "off", "replay", "inductor"] = "auto"
    validation_fraction: float = Field(0.0, ge=0.0, lt=1.0)
    patience: int = Field(10, ge=1)
    num_samples: int = Field(100, ge=2)
    checkpoint_every: int = Field(500, ge=1)

    @field_validator("net", mode="before")
    @classmethod
    def _plain_net(cls, net: Any) -> Any:
        """Write the mapping of a graph as YAML would give it back: keys are text."""
        if net is None or isinstance(net, str):
            return net
        if not isinstance(net, Mapping):
            raise ConfigError(
                "the value of 'net' is not accepted: it is text like mlp:64-100-10 or the mapping "
                f"of a graph. Got {short(net)}."
            )
        return plain_mapping(net, "the mapping of a graph network", ConfigError)

    @field_validator("priors", mode="after")
    @classmethod
    def _plain_priors(cls, priors: dict[str, Any]) -> dict[str, Any]:
        # Imported here: reading a configuration must not import torch unless there are priors in
        # it.
        from zoo.priors import parse_priors

        return {pattern: str(prior) for pattern, prior in parse_priors(priors).items()}

    @model_validator(mode="before")
    @classmethod
    def _new_spellings(cls, values: Any) -> Any:
        """Move what an earlier spelling had elsewhere to the options."""
        if not isinstance(values, dict):
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
                    # A later pattern that leaves the parameter out had its default.
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

    def recipe(self, entry: Entry) -> Recipe:
        """Return the method's recipe with this configuration's values put in."""
        given = {name: getattr(self, name) for name in asdict(entry.recipe)}
        return replace(entry.recipe, **{k: v for k, v in given.items() if v is not None})

    def resolved(self, entry: Entry, **values: Any) -> "RunConfig":
        """Return a copy with the method's defaults and the given values filled in."""
        return self.model_copy(update=asdict(self.recipe(entry)) | values)


def make_config(**values: Any) -> RunConfig:
    """Build a configuration; a bad value ends in a `ConfigError` of one line."""
    try:
        return RunConfig(**values)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, ZooError):  # raised by a validator: its own words are better
            raise cause from None
        raise ConfigError(_explain(error)) from None


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


def dump_config(config: RunConfig) -> str:
    """Return the YAML text of a configuration."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


def _explain(error: ValidationError) -> str:
    """Turn pydantic's list of problems into one line about the first of them."""
    problem = error.errors(include_url=False)[0]
    name = ".".join(map(str, problem["loc"])) or "configuration"
    known = list(RunConfig.model_fields)
    if problem["type"] == "extra_forbidden":
        return (
            f"unknown configuration key {name!r}.{did_you_mean(name, known)} "
            f"Known: {', '.join(known)}."
        )
    if problem["type"] == "missing":
        return f"the configuration needs a value for {name!r}."
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"the value of {name!r} is not accepted: {message}. Got {problem['input']!r:.80}."
