"""The group normal-Jeffreys prior."""

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from guides.mean_field import MeanField
from zoo.distributions import LogUniform
from zoo.priors.program import Program
from zoo.priors.structured import StructuredPrior, structured
from zoo.slots import Grouping, Slot


@structured
@dataclass(frozen=True)
class NormalJeffreys(StructuredPrior):
    r"""An improper log-uniform scale for each group.

    .. math::
        w_{ij} = z_i \tilde w_{ij}, \quad p(z_i) \propto |z_i|^{-1}, \quad \tilde w_{ij} \sim N(0,
        1)

    Integrated over its scale, each weight is log-uniform, :math:`p(w) \propto |w|^{-1}`. The prior
    is improper: only differences of the ELBO mean something, and it cannot be sampled.

    Parameters
    ----------
    group
        Which weights share a scale.

    References
    ----------
    Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
    """

    group: Grouping = "auto"

    def program(self, slot: Slot) -> "NormalJeffreysProgram":
        """Return the program with sites for the group scales and the standardised weights."""
        return NormalJeffreysProgram(slot, slot.group_shape(self.group))

    def guide(self, slot: Slot, program: Program, init_scale: float) -> MeanField:
        """Gaussian group scales around one, Gaussian standardised weights."""
        groups = slot.group_shape(self.group).numel()
        return MeanField(
            program,
            init={slot.name + "_base": slot.value, slot.name + "_z": slot.value.new_ones(groups)},
            init_scale=init_scale,
        )


class NormalJeffreysProgram(Program):
    """Pyro program of `NormalJeffreys` for one slot, non-centred."""

    zero: Tensor
    one: Tensor

    def __init__(self, slot: Slot, group_shape: torch.Size) -> None:
        super().__init__(slot)
        self.group_shape = group_shape
        self.register_buffer("zero", slot.value.new_zeros(()))
        self.register_buffer("one", slot.value.new_ones(()))

    def forward(self) -> Tensor:
        """Sample group scales and standardised weights; return their product."""
        name = self.slot_name
        z = pyro.sample(f"{name}_z", LogUniform().expand([self.group_shape.numel()]).to_event(1))
        base = pyro.sample(
            f"{name}_base",
            dist.Normal(self.zero, self.one).expand(self.slot_shape).to_event(len(self.slot_shape)),
        )
        return self.named(base * z.reshape(z.shape[:-1] + self.group_shape))
