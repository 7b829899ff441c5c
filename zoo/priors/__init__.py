"""Priors: parse them, check them, print them, and turn them into Pyro programs and guides.

`spec` reads and prints, `families` knows the names and ranges, `program` makes Pyro programs; each
structured prior has a file of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributions import constraints

from guides.mean_field import MeanField
from zoo.errors import PriorError
from zoo.network.slots import Slot, assign
from zoo.priors.empirical_bayes import EmpiricalBayes
from zoo.priors.families import describe, typical_points
from zoo.priors.gaussian_dropout import GaussianDropout
from zoo.priors.graves import Graves
from zoo.priors.horseshoe import Horseshoe
from zoo.priors.log_uniform import LogUniform
from zoo.priors.log_uniform_noise import LogUniformNoise
from zoo.priors.normal_jeffreys import NormalJeffreys, TruncatedNormalJeffreys
from zoo.priors.program import PlainProgram, Program
from zoo.priors.quantizing import Quantizing
from zoo.priors.spec import Prior
from zoo.priors.structure import DirichletStructure, GumbelSoftmax, SoftmaxStructure

__all__ = [
    "DirichletStructure",
    "EmpiricalBayes",
    "GaussianDropout",
    "Graves",
    "GumbelSoftmax",
    "Horseshoe",
    "LogUniform",
    "LogUniformNoise",
    "NormalJeffreys",
    "Prior",
    "Program",
    "Quantizing",
    "SoftmaxStructure",
    "TruncatedNormalJeffreys",
    "build_guide",
    "build_program",
    "is_improper",
    "makes_noise",
    "parse_priors",
    "proper_counterpart",
    "resolve_priors",
]

PriorSource = str | Mapping[str, Any] | Prior


def parse_priors(priors: Mapping[str, PriorSource]) -> dict[str, Prior]:
    """Parse every value of a mapping from slot patterns to priors."""
    if not isinstance(priors, Mapping):
        raise PriorError(
            f"priors must be a mapping like {{'*.weight': 'Normal(0, 1)'}}. Got {priors!r:.80}."
        )
    return {str(pattern): Prior.parse(source) for pattern, source in priors.items()}


def resolve_priors(
    user: Mapping[str, PriorSource], defaults: Mapping[str, PriorSource], slots: Sequence[Slot]
) -> dict[str, Prior]:
    """Find the prior of each slot: the user's patterns first, then the method's defaults.

    Within one mapping the last matching pattern wins. A default that matches nothing is fine, a
    pattern of the user's that matches nothing is an error. Slots without a prior are left out.
    """
    chosen = assign(parse_priors(defaults), slots, must_match=False)
    chosen |= assign(parse_priors(user), slots)
    for slot in slots:
        if slot.name in chosen:
            check_support(chosen[slot.name], slot)
    return {slot.name: chosen[slot.name] for slot in slots if slot.name in chosen}


def check_support(prior: Prior, slot: Slot) -> None:
    """Refuse a prior whose values do not fit the slot; an activation may be multiplied by any."""
    of_structure = getattr(prior.family.cls, "of_structure", False)
    if of_structure != (slot.layer == "structure"):
        raise PriorError(
            f"the prior {prior} is for the structure of a network, and the slot {slot.name!r} is "
            "none."
            if of_structure
            else f"the slot {slot.name!r} is the structure of a network: its prior is "
            f"GumbelSoftmax() or DirichletStructure(). Got {prior}."
        )
    if slot.layer in ("activation", "structure"):
        return
    support = prior.family.support(prior.arguments)
    if slot.positive:
        fits = bool((typical_points(support) > 0).all())
    else:
        fits = bool(support.check(torch.tensor([-10.0, -0.1, 0.1, 10.0])).all())
    if not fits:
        needed = "positive, like HalfNormal(1)" if slot.positive else "all real, like Normal(0, 1)"
        raise PriorError(
            f"the prior {prior} of slot {slot.name!r} has the wrong support ({describe(support)}): "
            f"values of this slot are {needed}."
        )


def build_program(prior: Prior, slot: Slot) -> Program:
    """Return the Pyro program that draws the slot's value from its prior."""
    if prior.family.structured:
        program: Program = prior.family.cls(**prior.arguments).program(slot)
        return program
    return PlainProgram(slot, prior)


def build_guide(prior: Prior, slot: Slot, program: Program, *, init_scale: float) -> MeanField:
    """Return the guide that follows the prior, started at the slot's current value.

    A value that the prior excludes, or has at its border, is no place to start: then it is the
    median of the prior.
    """
    if prior.family.structured:
        guide: MeanField = prior.family.cls(**prior.arguments).guide(slot, program, init_scale)
        return guide
    inside = _is_inside(prior.family.support(prior.arguments), slot.value)
    init = {slot.name: slot.value} if inside else {}
    return MeanField(program, init=init, init_scale=init_scale)


def _is_inside(support: constraints.Constraint, value: torch.Tensor) -> bool:
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    at_border = any(bool((value == bound).any()) for bound in bounds if bound is not None)
    return bool(support.check(value).all()) and not at_border


def is_improper(prior: Prior) -> bool:
    """Tell whether a prior has no density that integrates to one."""
    return bool(getattr(prior.family.cls, "is_improper", False))


def makes_noise(prior: Prior) -> bool:
    """Tell whether most weights become noise under a prior."""
    return bool(getattr(prior.family.cls, "makes_noise", False))


def proper_counterpart(prior: Prior) -> Prior | None:
    """Return the proper prior that stands for an improper one in sampling; None if it is proper."""
    if not prior.family.structured:
        return None
    text = prior.family.cls(**prior.arguments).proper()
    return None if text is None else Prior.parse(text)
