"""Priors: parse them, check them, print them, and turn them into Pyro programs and guides.

`spec` reads and prints, `families` knows the names and ranges, `program` makes Pyro programs; each
structured prior has a file of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from guides.mean_field import MeanField
from zoo.errors import PriorError
from zoo.priors.families import describe, typical_points
from zoo.priors.horseshoe import Horseshoe
from zoo.priors.normal_jeffreys import NormalJeffreys
from zoo.priors.program import PlainProgram, Program
from zoo.priors.spec import Prior
from zoo.slots import Slot, assign

__all__ = [
    "Horseshoe",
    "NormalJeffreys",
    "Prior",
    "Program",
    "build_guide",
    "build_program",
    "parse_priors",
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
    """Refuse a prior whose values do not fit the slot."""
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

    A value that the prior excludes is no place to start: then it is the median of the prior.
    """
    if prior.family.structured:
        guide: MeanField = prior.family.cls(**prior.arguments).guide(slot, program, init_scale)
        return guide
    possible = bool(prior.family.support(prior.arguments).check(slot.value).all())
    init = {slot.name: slot.value} if possible else {}
    return MeanField(program, init=init, init_scale=init_scale)
