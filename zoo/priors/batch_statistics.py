"""The laws of batch statistics: what mini-batches make of them stands in the place of a prior."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from guides.stochastic_batch_norm import START_SCALE, BatchStatistic, Moments
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.program import Program
from zoo.priors.structured import StructuredPrior, structured


class _BatchLaw(StructuredPrior):
    """A law that is estimated from mini-batches, and the guide that is the same law."""

    #: How the buffer of a normalisation layer is called that it belongs to.
    buffer: ClassVar[str]
    family: ClassVar[Callable[..., Any]]

    def program(self, slot: Slot) -> "BatchStatisticProgram":
        """Return the program that draws the statistic."""
        if slot.layer != "normalisation" or not slot.name.endswith(self.buffer):
            raise PriorError(
                f"{type(self).__name__} is the law of the {self.buffer} of batch normalisation. "
                f"The slot {slot.name!r} is none."
            )
        return BatchStatisticProgram(slot, type(self).family, positive=slot.positive)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> BatchStatistic:
        """Return the same law: nothing is learned about a statistic beyond its batches."""
        return BatchStatistic(program)


@structured
@dataclass(frozen=True)
class BatchMean(_BatchLaw):
    r"""Means of a channel over mini-batches, :math:`\mu \sim N(m_\mu, s_\mu^2)`."""

    buffer: ClassVar[str] = "running_mean"
    family: ClassVar[Callable[..., Any]] = dist.Normal


@structured
@dataclass(frozen=True)
class BatchVariance(_BatchLaw):
    r"""Variances over mini-batches, :math:`\log \sigma^2 \sim N(2 m_\sigma, 4 s_\sigma^2)`."""

    buffer: ClassVar[str] = "running_var"
    family: ClassVar[Callable[..., Any]] = dist.LogNormal
    support: ClassVar[constraints.Constraint] = constraints.positive


class BatchStatisticProgram(Program):
    """Pyro program of a statistic; narrow around its running average until moments are matched."""

    loc: Tensor
    scale: Tensor

    def __init__(self, slot: Slot, family: Callable[..., Any], *, positive: bool) -> None:
        super().__init__(slot)
        self.family = family
        smallest = torch.finfo(slot.value.dtype).tiny  # the running variance of a dead channel is 0
        value = slot.value.clamp(min=smallest).log() if positive else slot.value.clone()
        self.register_buffer("loc", value)
        self.register_buffer("scale", torch.full_like(value, START_SCALE))

    @torch.no_grad()
    def match(self, moments: Moments) -> None:
        """Take the moments of the statistic; of a variance, those of its logarithm."""
        self.loc.copy_(moments.mean)
        self.scale.copy_(moments.scale)

    def forward(self) -> Tensor:
        """Sample the statistic of every channel."""
        law = self.family(self.loc, self.scale).to_event(len(self.slot_shape))
        value: Tensor = pyro.sample(self.slot_name, law)
        return value
