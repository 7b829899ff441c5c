"""`Prior`: a distribution written as text or as a mapping.

Texts are ``Normal(0, 1)``, ``StudentT(df=3, scale=0.5)``, nested ``Normal(0, HalfCauchy(1))`` and
structured ``GroupHorseshoe(scale=1e-5, group=input)``. The mapping of the third is
``{dist: Normal, loc: 0, scale: {dist: HalfCauchy, scale: 1}}``. Text is parsed and never evaluated
(`zoo.parsing.calls`).
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zoo.errors import PriorError
from zoo.parsing.calls import MAX_DEPTH, MAX_TEXT, Argument, Call, finite_number, parse_call, short
from zoo.priors.families import Family, find_family

if TYPE_CHECKING:
    from torch.distributions import Distribution

#: What a parameter of a prior may be: a number, an option, a list of numbers, or a hyper-prior.
Value: TypeAlias = "float | str | tuple[float, ...] | Prior"


@dataclass(frozen=True)
class Prior:
    """One prior with all of its parameters, defaults included.

    Attributes
    ----------
    name
        Name of the family: a Pyro distribution or a structured prior.
    params
        Pairs of parameter name and value, in the order of the family's signature.
    options
        Pairs of option name and value that an old spelling has among the parameters.

    Examples
    --------
    >>> prior = Prior.parse("Normal(0, HalfCauchy(1))")
    >>> str(prior)
    'Normal(loc=0, scale=HalfCauchy(scale=1))'
    >>> Prior.parse(prior.to_dict()) == Prior.parse(str(prior)) == prior
    True
    """

    name: str
    params: tuple[tuple[str, Value], ...]
    options: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def parse(cls, source: "str | Mapping[str, Any] | Distribution | Prior") -> "Prior":
        """Read a prior from text, from a mapping, or from a Pyro distribution."""
        if isinstance(source, Prior):
            return source
        if isinstance(source, str):
            return _from_call(
                parse_call(source, what="prior", example="Normal(0, 1)", error=PriorError)
            )
        if isinstance(source, Mapping):
            return _from_mapping(source, depth=1)
        if hasattr(source, "arg_constraints"):
            return _from_distribution(source)
        raise PriorError(
            "a prior is text like 'Normal(0, 1)', a mapping like "
            "{dist: Normal, loc: 0, scale: 1}, or a Pyro distribution. "
            f"Got {short(source)} of type {type(source).__name__}."
        )

    @property
    def family(self) -> Family:
        """The family of this prior."""
        return find_family(self.name)

    @property
    def arguments(self) -> dict[str, Value]:
        """Parameter values by name."""
        return dict(self.params)

    def to_dict(self) -> dict[str, Any]:
        """Return the prior as a mapping of plain types, for YAML and JSON."""
        return {"dist": self.name} | {name: _plain(value) for name, value in self.params}

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={_text(value)}" for name, value in self.params)
        return f"{self.name}({arguments})"


def _from_call(call: Call) -> Prior:
    keywords = {name: _from_argument(argument) for name, argument in call.keywords}
    return _complete(call.name, [*map(_from_argument, call.positional)], keywords)


def _from_argument(argument: Argument) -> Value:
    return _from_call(argument) if isinstance(argument, Call) else argument


def _from_mapping(mapping: Mapping[Any, Any], depth: int) -> Prior:
    if any(not isinstance(key, str) for key in mapping):
        raise PriorError(f"the keys of a prior mapping must be text. Got {short(mapping)}.")
    name = mapping.get("dist")
    if not isinstance(name, str):
        raise PriorError(
            f"a prior mapping needs the key 'dist' with the name of a distribution. "
            f"Got {short(dict(mapping))}."
        )
    keywords = {
        key: _mapping_value(value, depth) for key, value in mapping.items() if key != "dist"
    }
    return _complete(name, [], keywords)


def _from_distribution(distribution: Any) -> Prior:
    """Return the prior of a distribution whose elements all have the same parameters."""
    while hasattr(distribution, "base_dist") and hasattr(distribution, "reinterpreted_batch_ndims"):
        distribution = distribution.base_dist
    name = type(distribution).__name__
    family = find_family(name)
    if type(distribution) is not family.cls:
        raise PriorError(
            f"the distribution {short(distribution)} is not the {name} that prior texts name. Give "
            "a distribution of pyro.distributions, or text."
        )
    keywords: dict[str, Value] = {}
    for parameter in family.parameters:
        values = getattr(distribution, parameter.name)
        numbers = values.detach().double().flatten().unique().tolist()
        if len(numbers) != 1:
            raise PriorError(
                f"the parameter {parameter.name!r} of the distribution {name} has {len(numbers)} "
                "different values. A prior has one for all elements of a slot: give slots priors "
                "of their own, by pattern."
            )
        keywords[parameter.name] = float(numbers[0])
    return _complete(name, [], keywords)


def _mapping_value(value: Any, depth: int) -> Value:
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            raise PriorError(f"hyper-priors may be nested at most {MAX_DEPTH} deep.")
        return _from_mapping(value, depth + 1)
    if isinstance(value, Prior):
        return value
    if isinstance(value, str):
        return _text_value(value)
    if isinstance(value, list | tuple):
        return tuple(finite_number(item, PriorError) for item in value)
    return finite_number(value, PriorError)


def _text_value(text: str) -> Value:
    """Read text inside a mapping: a nested prior, a number (YAML reads 1e-5 as text), an option."""
    if "(" in text:
        return Prior.parse(text)
    try:
        return finite_number(float(text), PriorError)
    except (ValueError, PriorError):
        return text


def _complete(name: str, positional: list[Value], keywords: dict[str, Value]) -> Prior:
    """Bind arguments to the family's signature, fill in the defaults and check every value."""
    family = find_family(name)
    arguments, options = family.bind(positional, keywords)
    family.check(arguments)
    prior = Prior(family.name, tuple(arguments.items()), tuple(options.items()))
    if name != family.name or options:
        _warn_of_spelling(name, prior)
    # Mappings could be deeper and longer than text, but every prior must be writable as text.
    if _depth(prior) > MAX_DEPTH:
        raise PriorError(f"hyper-priors may be nested at most {MAX_DEPTH} deep.")
    if len(str(prior)) > MAX_TEXT:
        raise PriorError(f"a prior has at most {MAX_TEXT} characters. Got {short(str(prior))}.")
    return prior


def _warn_of_spelling(written: str, prior: Prior) -> None:
    moved = "".join(f", with the option {name}={_text(value)}" for name, value in prior.options)
    warnings.warn(
        f"{written}(...) is an old spelling and will not be read by the next release. Write "
        f"{prior}{moved}.",
        FutureWarning,
        stacklevel=2,
    )


def _depth(prior: Prior) -> int:
    return 1 + max((_depth(v) for _, v in prior.params if isinstance(v, Prior)), default=0)


def _plain(value: Value) -> Any:
    if isinstance(value, Prior):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    plain = _plain(value)
    return str(value) if isinstance(value, Prior | str) else repr(plain)
