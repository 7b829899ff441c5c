"""Values of the slots of a compressed network: posterior means or code words."""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from guides.base import Guide
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.pruning.groups import guide_parts
from zoo.network.bnn import BNN

#: Draws for estimating moments that the guide does not provide.
MOMENT_DRAWS = 1000


@runtime_checkable
class MomentGuide(Protocol):
    """A guide that provides mean and variance of the weights of its slot."""

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        """Return marginal mean and variance of every weight."""


@runtime_checkable
class CodebookPrior(Protocol):
    """A prior whose weights end up on code words."""

    def code_words(self) -> Tensor:
        """Return the code words."""

    def quantized(self, part: Any) -> Tensor:
        """Return the code word of every weight of the slot."""


@dataclass(frozen=True)
class SlotMoments:
    """Value of every slot in a compressed network, and posterior variances, in float64.

    Slots on code words have no variances.
    """

    means: dict[str, Tensor] = field(default_factory=dict)
    variances: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def slot_moments(model: BNN, guide: Guide, *, seed: int) -> SlotMoments:
    """Return means and variances of all slots, from draws if there is no closed form."""
    parts = guide_parts(guide)
    found = SlotMoments()
    for name in filter(parts.__contains__, model.slots):
        prior: object = model.prior(name)
        if isinstance(prior, CodebookPrior):
            found.means[name] = prior.quantized(parts[name]).double()
            continue
        moments = _in_closed_form(name, parts[name])
        if moments is not None:
            found.means[name], found.variances[name] = (m.double() for m in moments)
    missing = [name for name in model.slots if name not in found.means]
    if missing:
        slots = draw_posterior(model, guide, MOMENT_DRAWS, seed=seed).slots
        for name in missing:
            draws = slots[name].double()
            found.means[name], found.variances[name] = draws.mean(0), draws.var(0)
    return found


def _in_closed_form(name: str, part: Guide) -> tuple[Tensor, Tensor] | None:
    if isinstance(part, MomentGuide):
        return part.weight_moments()
    distribution = part.distributions().get(name)
    try:
        return None if distribution is None else (distribution.mean, distribution.variance)
    except NotImplementedError:
        return None
