"""From a name, a text or an object to the guide of a model."""

from collections.abc import Callable
from typing import Any

import pyro.infer.autoguide as autoguides
from torch import nn

from guides.adapted import Adapted, auto_guide
from guides.base import GUIDES, Guide
from guides.full_rank import FullRank
from zoo.errors import ConfigError, unknown_name
from zoo.network.bnn import BNN
from zoo.parsing.calls import Call, parse_call
from zoo.registry import discover, method_name

#: What a guide may be: a name, a text, a class of `pyro.infer.autoguide`, a guide, or a function.
GuideSource = str | type | nn.Module | Callable[..., Any]
NAMES = ("factorised", "full_rank")


def guide_text(source: GuideSource) -> str | None:
    """Return the text of a guide that a stored configuration can name; None for an object."""
    if isinstance(source, str):
        check_guide(source)
        return source
    if isinstance(source, type) and getattr(autoguides, source.__name__, None) is source:
        return str(source.__name__)
    return None


def check_guide(text: str) -> None:
    """Refuse a text that names no guide."""
    if text not in NAMES:
        parse_guide(text)


def build_guide(model: BNN, source: GuideSource, init_scale: float) -> Guide:
    """Return a guide of a network's model, initialised at the network's current weights.

    ``init_scale`` is the initial standard deviation in unconstrained space.
    """
    if source == "factorised":
        return model.method.guide(model, init_scale)
    if isinstance(source, Guide):
        return source
    family: Any
    family, options = parse_guide(source) if isinstance(source, str) else (source, {})
    if family is FullRank:
        return model.method.full_rank_guide(model, init_scale)
    name = source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)
    model.method.require_open(name)
    model.require_fixed_priors(name)
    try:
        if not isinstance(family, type):
            return Adapted(family, model.sample_slots)
        start = model.factorised_guide(init_scale).medians()
        if issubclass(family, Guide):
            made: Guide = family(model.sample_slots, init=start, init_scale=init_scale, **options)
            return made
        return auto_guide(
            family, model.sample_slots, init=start, init_scale=init_scale, options=options
        )
    except (ValueError, TypeError, RuntimeError) as error:
        message = " ".join(str(error).split())[:200]
        raise ConfigError(f"the guide {name!r} cannot be used: {message}.") from None


def guide_families() -> dict[str, type]:
    """Return the guides that a text can name: those of Pyro, ours, and those of plug-ins."""
    discover()
    autos = [name for name in autoguides.__all__ if name.startswith("Auto")]
    own = {method_name(name.removesuffix("Guide")): cls for name, cls in GUIDES.items()}
    return own | {name: getattr(autoguides, name) for name in autos}


def parse_guide(text: str) -> tuple[type, dict[str, Any]]:
    """Read text such as ``AutoLowRankMultivariateNormal(rank=5)``."""
    call = parse_call(
        text, what="guide", example="factorised or AutoNormal(init_scale=0.1)", error=ConfigError
    )
    families = guide_families()
    if call.name not in families:
        raise unknown_name("guide", call.name, {*NAMES, *families})
    if call.positional or any(isinstance(v, Call | tuple) for _, v in call.keywords):
        raise ConfigError(f"the guide {text!r} takes numbers and names by keyword, like rank=5.")
    options = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in call.keywords
    }
    return families[call.name], options
