"""Structured priors: a slot's value made from several sites.

A structured prior is a frozen dataclass whose fields are its parameters. It builds the Pyro program
that draws the slot's value and names the guide family that matches it.
"""

import dataclasses
import typing
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch.distributions import constraints

from guides.mean_field import MeanField
from zoo.network.slots import Slot
from zoo.priors.families import REQUIRED, Family, Parameter, register_structured
from zoo.priors.program import Program


class StructuredPrior(ABC):
    """Base class of structured priors."""

    #: Ranges of the numeric fields, by name.
    ranges: ClassVar[dict[str, constraints.Constraint]] = {}
    #: Where the values of the slot live.
    support: ClassVar[constraints.Constraint] = constraints.real
    #: Whether it is a prior of structure, and of nothing else.
    of_structure: ClassVar[bool] = False
    #: Whether it has no density, so that a divergence from it is known up to a constant at best.
    is_improper: ClassVar[bool] = False
    #: Whether most weights become noise, which drowns gradients that have one draw for all rows.
    makes_noise: ClassVar[bool] = False

    @abstractmethod
    def program(self, slot: Slot) -> Program:
        """Return the Pyro program that draws the value of ``slot``."""

    @abstractmethod
    def guide(self, slot: Slot, program: Program, init_scale: float) -> MeanField:
        """Return the guide that matches the program."""

    def proper(self) -> str | None:
        """Return the proper prior that stands for an improper one where draws are needed."""
        return None


def structured(cls: type) -> type:
    """Register a structured prior under the name of its class."""
    parameters = tuple(_parameter(cls, field) for field in dataclasses.fields(cls))
    register_structured(Family(cls.__name__, parameters, cls, structured=True))
    return cls


def _parameter(cls: Any, field: dataclasses.Field[Any]) -> Parameter:
    default = REQUIRED if field.default is dataclasses.MISSING else field.default
    hint = typing.get_type_hints(cls)[field.name]
    if typing.get_origin(hint) is typing.Literal:
        return Parameter(field.name, default, choices=typing.get_args(hint))
    is_list = typing.get_origin(hint) is tuple
    return Parameter(field.name, default, cls.ranges.get(field.name), is_list=is_list)
