"""Shared arguments and flags, and the parsing of repeatable ones."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.errors import ConfigError

Method = Annotated[str, typer.Argument(help="Name of a method, see 'zoo list'.")]
Run = Annotated[Path, typer.Argument(help="A finished run directory.")]
Priors = Annotated[
    list[str] | None,
    typer.Option("--prior", help="Replace a prior, as in 'zoo fit'; repeatable."),
]
Robustness = Annotated[
    bool,
    typer.Option("--robustness", help="Also score the fit under noise, FGSM and weight deletion."),
]
ForUse = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="USE",
        help="Judge one use only, also in the exit code: predict, intervals, parameters, compare "
        "or compress; by default all that the fit is made for.",
    ),
]
Executor = Annotated[
    str | None,
    typer.Option(help="Where to run tasks: serial, processes, processes:N or tcp://host:port."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide the progress bar.")]

_OPTION = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(\[(?P<slots>.+?)\]\s*)?=(?P<value>.*)", re.S)


def parse_priors(flags: Iterable[str] | None) -> dict[str, str]:
    """Split 'PATTERN=PRIOR' at the first '='; a prior alone applies to all weights."""
    priors: dict[str, str] = {}
    for flag in flags or ():
        pattern, separator, prior = flag.partition("=")
        # 'Normal(loc=0, scale=1)' has its first '=' inside the parentheses.
        if not separator or "(" in pattern:
            pattern, prior = "*weight", flag
        priors[pattern.strip()] = prior.strip()
    return priors


def parse_options(flags: Iterable[str] | None) -> dict[str, Any]:
    """Read 'NAME=VALUE', or 'NAME[PATTERN]=VALUE' for the slots that match a pattern.

    Examples
    --------
    >>> parse_options(["rank=20", "max_sd[0.weight]=0.2"])
    {'rank': 20, 'max_sd': {'0.weight': 0.2}}
    """
    options: dict[str, Any] = {}
    for flag in flags or ():
        found = _OPTION.fullmatch(flag)
        if found is None:
            raise ConfigError(
                "an option is written NAME=VALUE, or NAME[PATTERN]=VALUE for some slots, for "
                f"example rank=20. Got {flag!r}."
            )
        name, slots, value = found["name"], found["slots"], parse_value(found["value"])
        if name in options and isinstance(options[name], dict) != bool(slots):
            raise ConfigError(
                f"give the option {name!r} one value for all slots, or one for each pattern, not "
                "both."
            )
        if slots:
            options.setdefault(name, {})[slots.strip()] = value
        else:
            options[name] = value
    return options


def parse_value(text: str) -> int | float | bool | str:
    """Read a number, true or false, or else text; nothing is evaluated."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
