"""Values of the slots of a compressed network: posterior means or code words."""

from collections.abc import Mapping
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
    """Centre and spread of every slot, in float64.

    Attributes
    ----------
    means
        Value of every slot in a compressed network.
    variances
        Posterior variances of the slots that have any.
    """

    means: dict[str, Tensor] = field(default_factory=dict)
    variances: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def slot_moments(model: BNN, guide: Guide, *, seed: int) -> SlotMoments:
    """Return means and variances of all slots, from draws if there is no closed form.

    Parameters
    ----------
    model, guide
        A fitted model.
    seed
        Seed of the draws.
    """
    parts = guide_parts(guide)
    found = SlotMoments()
    for name in model.slots:
        codes = _code_words(model, name, parts)
        if codes is not None:
            found.means[name] = codes.double()
            continue
        moments = _in_closed_form(name, parts)
        if moments is not None:
            found.means[name], found.variances[name] = moments
    missing = [name for name in model.slots if name not in found.means]
    if missing:
        slots = draw_posterior(model, guide, MOMENT_DRAWS, seed=seed).slots
        for name in missing:
            draws = slots[name].double()
            found.means[name], found.variances[name] = draws.mean(0), draws.var(0)
    return found


def _code_words(model: BNN, name: str, parts: Mapping[str, object]) -> Tensor | None:
    prior: object = model.prior(name)
    if name in parts and isinstance(prior, CodebookPrior):
        return prior.quantized(parts[name])
    return None


def _in_closed_form(name: str, parts: Mapping[str, object]) -> tuple[Tensor, Tensor] | None:
    part = parts.get(name)
    if isinstance(part, MomentGuide):
        mean, variance = part.weight_moments()
        return mean.double(), variance.double()
    distribution = part.distributions().get(name) if isinstance(part, Guide) else None
    try:
        return None if distribution is None else _moments(distribution)
    except NotImplementedError:
        return None


def _moments(distribution: Any) -> tuple[Tensor, Tensor]:
    return distribution.mean.double(), distribution.variance.double()
