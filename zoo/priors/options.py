"""Settings of methods and guides, typed and checked."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from zoo.errors import ConfigError, did_you_mean


class Options(BaseModel):
    """Settings of a guide, of an objective or of a method; a subclass declares them as fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def validated(options: type[Options], values: Mapping[str, Any]) -> Options:
    """Check the values of options; a bad one ends in a `ConfigError` of one line."""
    try:
        return options(**values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(map(str, problem["loc"]))
        known = list(options.model_fields)
        if problem["type"] == "extra_forbidden":
            listed = ", ".join(known) or "none"
            raise ConfigError(
                f"unknown option {name!r}.{did_you_mean(name, known)} Known: {listed}."
            ) from None
        message = problem["msg"][0].lower() + problem["msg"][1:]
        raise ConfigError(
            f"the option {name!r} is not accepted: {message}. Got {problem['input']!r:.80}."
        ) from None
