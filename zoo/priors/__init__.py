"""Priors: parse them, check them, print them, and turn them into Pyro models.

`spec` parses and prints, `families` holds names and ranges, `plain` makes Pyro models of ordinary
distributions. Structured priors are subclasses of `SlotPrior`, in the file of their method
(`zoo.models`), in this folder if methods share them, or in plug-ins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributions import Distribution

from zoo.errors import PriorError
from zoo.network.slots import Slot, assign
from zoo.priors.families import describe, typical_points
from zoo.priors.options import Options
from zoo.priors.plain import PlainPrior
from zoo.priors.slot_prior import SlotPrior
from zoo.priors.spec import Prior

__all__ = [
    "Options",
    "Prior",
    "PriorSource",
    "SlotPrior",
    "parse_priors",
    "prior_of_slot",
    "resolve_priors",
]

PriorSource = str | Mapping[str, Any] | Distribution | Prior


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
    """Refuse a prior with the wrong support for the slot; an activation accepts any."""
    cls: Any = prior.family.cls
    of_structure = getattr(cls, "of_structure", False)
    if of_structure != (slot.layer == "structure"):
        raise PriorError(
            f"the prior {prior} is for the structure of a network. The slot {slot.name!r} is not "
            "a structure."
            if of_structure
            else f"the slot {slot.name!r} is the structure of a network: its prior is "
            f"GumbelSoftmaxStructure() or DirichletStructure(). Got {prior}."
        )
    if slot.layer in ("activation", "structure"):
        return
    support = (
        cls.support_of(slot) if prior.family.structured else prior.family.support(prior.arguments)
    )
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


def prior_of_slot(prior: Prior, slot: Slot) -> SlotPrior:
    """Return the Pyro model that draws the slot's value from its prior."""
    if prior.family.structured:
        model: SlotPrior = prior.family.cls(slot, **prior.arguments)
        return model
    return PlainPrior(slot, prior)
