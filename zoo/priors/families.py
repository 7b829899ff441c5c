"""Families of priors: their names, parameters and supports.

There are two kinds. A *plain* family is any univariate continuous distribution of Pyro or of
`zoo.distributions`: parameter names are read from its signature, ranges from its
``arg_constraints``. A *structured* family is a Pyro model of one or more sites, a subclass of
`zoo.priors.slot_prior.SlotPrior`, mostly in the file of its method. It registers itself when it is
defined.
"""

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyro.distributions
import torch
from torch.distributions import Distribution, constraints, transform_to

import zoo.distributions
from zoo.errors import PriorError, did_you_mean
from zoo.parsing.calls import bind, short
from zoo.registry import discover

if TYPE_CHECKING:
    from zoo.priors.spec import Value

#: Marks a parameter that has no default.
REQUIRED = object()

#: Shown when a name is unknown: the ones most people want.
COMMON = (
    "Normal, Laplace, StudentT, Cauchy, GroupHorseshoe, GroupNormalJeffreys, SparseVD; "
    "for scales HalfNormal, HalfCauchy, Gamma, InverseGamma, LogNormal, Exponential"
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a family: its default and what it accepts."""

    name: str
    default: Any = REQUIRED
    constraint: constraints.Constraint | None = None
    choices: tuple[str, ...] = ()
    is_list: bool = False

    @property
    def accepts(self) -> str:
        """What the parameter accepts, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.is_list:
            return "a list of numbers like [-0.2, 0, 0.2]"
        return "a number" + (
            "" if self.constraint is None else f" that is {describe(self.constraint)}"
        )


@dataclass(frozen=True)
class Family:
    """A named family of priors: a distribution, or a structured prior with its own Pyro model."""

    name: str
    parameters: tuple[Parameter, ...]
    cls: type = field(repr=False)
    structured: bool = False

    @property
    def moved(self) -> tuple[str, ...]:
        """Former parameters that are now options of the guide."""
        return tuple(getattr(self.cls, "moved_parameters", ()))

    def bind(
        self, positional: Sequence["Value"], keywords: Mapping[str, "Value"]
    ) -> "tuple[dict[str, Value], dict[str, Value]]":
        """Return the values of all parameters, and of options that an old text has among them.

        Parameters that became options were the last ones of every signature.
        """
        given = bind(
            self.name,
            [p.name for p in self.parameters],
            positional,
            keywords,
            required=[p.name for p in self.parameters if p.default is REQUIRED],
            hidden=self.moved,
            error=PriorError,
        )
        values = {p.name: given.get(p.name, p.default) for p in self.parameters}
        return (
            {name: value for name, value in values.items() if value is not None},
            {name: value for name, value in given.items() if name in self.moved},
        )

    def check(self, arguments: "Mapping[str, Value]") -> None:
        """Check every value against its parameter's range."""
        for parameter in self.parameters:
            if parameter.name in arguments:  # an optional one may be left out
                self._check_one(parameter, arguments[parameter.name])
        if self.structured:
            self.cls.check(arguments)  # type: ignore[attr-defined]
        elif not any(_is_prior(value) for value in arguments.values()):
            self._instantiate(arguments)  # relations between parameters: Uniform(low < high)

    def _check_one(self, parameter: Parameter, value: "Value") -> None:
        constraint = parameter.constraint
        if parameter.choices:
            fits = value in parameter.choices
        elif parameter.is_list:
            fits = isinstance(value, tuple)
        elif _is_prior(value) and not self.structured:
            return self._check_hyper_prior(parameter, value)
        else:
            fits = isinstance(value, float) and (
                constraint is None or bool(constraint.check(_typical_value(value)))
            )
        if not fits:
            others = "" if self.structured or parameter.is_list else " or a hyper-prior"
            raise PriorError(
                f"the parameter {parameter.name!r} of {self.name} must be {parameter.accepts}"
                f"{others}. Got {short(value) if isinstance(value, str) else value}."
            )

    def _check_hyper_prior(self, parameter: Parameter, value: Any) -> None:
        """Refuse a hyper-prior with values that its parameter does not accept."""
        if value.family.structured:
            raise PriorError(
                f"the structured prior {value.name} cannot be a hyper-prior of {self.name}."
            )
        support = value.family.support(value.arguments)
        points = typical_points(support)
        if parameter.constraint is not None and not parameter.constraint.check(points).all():
            raise PriorError(
                f"the parameter {parameter.name!r} of {self.name} must be "
                f"{describe(parameter.constraint)}, but {value} has values that are "
                f"{describe(support)}."
            )

    def support(self, arguments: "Mapping[str, Value]") -> constraints.Constraint:
        """Return the support of a prior of this plain family."""
        support = self._instantiate(arguments).support
        assert support is not None
        return support

    def _instantiate(self, arguments: "Mapping[str, Value]") -> Distribution:
        numbers = {name: _typical_value(value) for name, value in arguments.items()}
        try:
            distribution: Distribution = self.cls(**numbers, validate_args=True)
            if distribution.batch_shape or distribution.event_shape:
                raise ValueError("its values are not single numbers")
        except (ValueError, NotImplementedError) as error:
            values = ", ".join(f"{name}={value}" for name, value in arguments.items())
            problem = " ".join(str(error).split())[:200]
            raise PriorError(f"{self.name}({values}) does not exist: {problem}") from None
        return distribution


def _is_prior(value: object) -> Any:
    return hasattr(value, "family")


def _typical_value(value: Any) -> torch.Tensor:
    """Return a number as a tensor; for a hyper-prior, one of its typical values."""
    if _is_prior(value):
        return typical_points(value.family.support(value.arguments))[0]
    return torch.tensor(value, dtype=torch.float64)


def typical_points(support: constraints.Constraint) -> torch.Tensor:
    """Return points spread over a support, to compare one support with another."""
    grid = torch.linspace(-4.0, 4.0, 9, dtype=torch.float64)
    points: torch.Tensor = transform_to(support)(grid)
    return points


def describe(constraint: constraints.Constraint) -> str:
    """Return a constraint in words."""
    if constraint is constraints.real:
        return "real"
    bounds = [
        f"{word} {float(getattr(constraint, name)):g}"
        for name, word in (("lower_bound", ">"), ("upper_bound", "<"))
        if hasattr(constraint, name)
    ]
    return " and ".join(bounds) if bounds else str(constraint).lower()


_STRUCTURED: dict[str, Family] = {}
_OLD_NAMES: dict[str, str] = {}


def register_prior(cls: Any) -> None:
    """Add a structured prior under the name of its class; called when the class is defined."""
    known = _STRUCTURED.get(cls.__name__)
    if known is not None and known.cls.__module__ != cls.__module__:
        raise ValueError(
            f"the prior {cls.__name__!r} of {cls.__module__} is already defined by "
            f"{known.cls.__module__}"
        )
    parameters = tuple(_declared(cls))
    _STRUCTURED[cls.__name__] = Family(cls.__name__, parameters, cls, structured=True)
    _OLD_NAMES.update(dict.fromkeys(cls.old_names, cls.__name__))


def _declared(cls: Any) -> typing.Iterator[Parameter]:
    """Read the parameters of a structured prior from its annotated attributes."""
    hints = typing.get_type_hints(cls)
    for name in vars(cls).get("__annotations__", {}):
        kind = typing.get_origin(hints[name]) or hints[name]
        default = getattr(cls, name, REQUIRED)
        if kind is typing.Literal:
            yield Parameter(name, default, choices=typing.get_args(hints[name]))
        elif kind in (float, tuple):  # anything else is a buffer or a class variable
            yield Parameter(name, default, cls.ranges.get(name), is_list=kind is tuple)


def find_family(name: str) -> Family:
    """Return the family called ``name``; discrete and multivariate distributions are none."""
    discover()
    if name in _STRUCTURED or name in _OLD_NAMES:
        return _STRUCTURED[_OLD_NAMES.get(name, name)]
    cls = _distribution_classes().get(name)
    if cls is None:
        known = [*_STRUCTURED, *_distribution_classes()]
        raise PriorError(
            f"unknown distribution {name[:60]!r}.{did_you_mean(name[:60], known)} "
            f"Common ones: {COMMON}."
        )
    return _plain_family(name, cls)


def _distribution_classes() -> dict[str, type]:
    modules = (pyro.distributions, zoo.distributions)  # ours win when a name is in both
    return {
        name: getattr(module, name)
        for module in modules
        for name in module.__all__
        if inspect.isclass(getattr(module, name))
        and issubclass(getattr(module, name), Distribution)
    }


def _plain_family(name: str, cls: type) -> Family:
    try:
        parameters = _read_signature(cls)
    except NotImplementedError:  # the dimensions of the class are not known
        parameters = None
    if parameters is None:
        raise PriorError(
            f"{name} cannot be a prior of a single weight: it is not a continuous univariate "
            f"distribution with numbers as parameters. Common ones: {COMMON}."
        )
    return Family(name, parameters, cls)


def _read_signature(cls: type) -> tuple[Parameter, ...] | None:
    """Return the parameters of a distribution, or None if it cannot be a prior."""
    declared = cls.__dict__.get("arg_constraints", getattr(cls, "arg_constraints", None))
    signature = dict(inspect.signature(cls).parameters)
    if signature.pop("validate_args", None) is None or declared is Distribution.arg_constraints:
        return None  # not made like a torch distribution, or only a base class
    if isinstance(declared, property):  # Uniform: ranges depend on the other parameter
        declared = dict.fromkeys(signature, constraints.real)
    if not isinstance(declared, Mapping):
        return None
    # A parameter without a declared range stays at its default, and that must be None.
    taken = [p for p in signature.values() if p.name in declared or p.default is not None]
    if not all(p.name in declared and declared[p.name].event_dim <= 1 for p in taken):
        return None
    support = getattr(cls, "support", None)
    if getattr(support, "is_discrete", False) or getattr(support, "event_dim", 0):
        return None
    return tuple(_parameter(p, declared[p.name]) for p in taken)


def _parameter(parameter: inspect.Parameter, constraint: constraints.Constraint) -> Parameter:
    default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
    if isinstance(default, int | float) and not isinstance(default, bool):
        default = float(default)
    if constraint.event_dim == 1:
        return Parameter(parameter.name, default, is_list=True)
    if constraints.is_dependent(constraint):
        constraint = constraints.real
    return Parameter(parameter.name, default, constraint)
