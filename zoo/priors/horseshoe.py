"""The group horseshoe prior."""

from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from guides.group_horseshoe import GroupHorseshoe
from zoo.network.slots import Grouping, Slot
from zoo.priors.program import Program, ScaledProgram
from zoo.priors.structured import StructuredPrior, structured


@structured
@dataclass(frozen=True)
class Horseshoe(StructuredPrior):
    r"""Half-Cauchy scales, one per group and one per slot.

    .. math::
        w_{ij} = \tilde w_{ij} \tilde z_i s, \quad \tilde w_{ij} \sim N(0, 1), \quad
        \tilde z_i \sim C^+(0, 1), \quad s \sim C^+(0, \tau_0)

    Each half-Cauchy is split into a Gamma and an inverse Gamma, :math:`\sqrt{ab} \sim C^+(0, k)`
    for :math:`a \sim \mathrm{Gamma}(1/2, \text{scale}=k^2)`, :math:`b \sim \mathrm{InvGamma}(1/2,
    1)`, whose divergences from a log-normal are known in closed form.

    Parameters
    ----------
    scale
        The global scale :math:`\tau_0`: the smaller, the sparser.
    group
        Which weights share a scale.
    max_sd
        Bound of the posterior standard deviations of :math:`\tilde w`. The publication sets one,
        0.2, for the first layer of dense networks; without it more is pruned, and less is right.

    References
    ----------
    Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
    Carvalho, Polson and Scott (2010), *The horseshoe estimator for sparse signals*.
    """

    makes_noise: ClassVar[bool] = True

    scale: float = 1e-5
    group: Grouping = "auto"
    max_sd: float | None = None

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "max_sd": constraints.interval(1e-6, 1e6),
        # Its square and the inverse of that must be normal numbers, also in float32.
        "scale": constraints.interval(1e-18, 1e18),
    }

    def program(self, slot: Slot) -> "HorseshoeProgram":
        """Return the program with sites for the four scales and the standardised weights."""
        return HorseshoeProgram(slot, self.scale, slot.group_shape(self.group), self.max_sd)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> GroupHorseshoe:
        """Log-normal scales, Gaussian standardised weights."""
        return GroupHorseshoe(
            program,
            slot=slot.name,
            global_scale=self.scale,
            group_shape=slot.group_shape(self.group),
            init={slot.name + "_base": slot.value},
            init_scale=init_scale,
        )


class HorseshoeProgram(ScaledProgram):
    """Pyro program of `Horseshoe` for one slot, non-centred."""

    one_half: Tensor
    global_rate: Tensor

    def __init__(
        self, slot: Slot, scale: float, group_shape: torch.Size, max_sd: float | None
    ) -> None:
        super().__init__(slot, group_shape, max_sd)
        self.register_buffer("one_half", slot.value.new_tensor(0.5))
        # Gamma(1/2, scale=tau0^2): torch takes the rate.
        self.register_buffer("global_rate", slot.value.new_tensor(scale**-2))

    def forward(self) -> Tensor:
        """Sample global scale, group scales and standardised weights; return their product."""
        name = self.slot_name
        groups = [self.group_shape.numel()]
        gamma, inverse_gamma = dist.Gamma, dist.InverseGamma
        global_a = pyro.sample(f"{name}_global_a", gamma(self.one_half, self.global_rate))
        global_b = pyro.sample(f"{name}_global_b", inverse_gamma(self.one_half, self.one))
        local_a = pyro.sample(
            f"{name}_local_a", gamma(self.one_half, self.one).expand(groups).to_event(1)
        )
        local_b = pyro.sample(
            f"{name}_local_b", inverse_gamma(self.one_half, self.one).expand(groups).to_event(1)
        )
        # Roots first: the product of four scales can leave the range of float32.
        s = (global_a.sqrt() * global_b.sqrt()).unsqueeze(-1)
        return self.scaled(s * (local_a.sqrt() * local_b.sqrt()))
