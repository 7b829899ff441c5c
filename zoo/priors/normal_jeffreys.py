"""The group normal-Jeffreys prior, and its proper counterpart."""

from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from guides.group_normal_jeffreys import GroupNormalJeffreys
from guides.mean_field import MeanField
from zoo.distributions import LogUniform
from zoo.errors import PriorError
from zoo.network.slots import Grouping, Slot
from zoo.priors.program import Program, ScaledProgram
from zoo.priors.structured import StructuredPrior, structured


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
    max_sd
        Bound of the posterior standard deviations of :math:`\tilde w`. The publication sets one,
        0.2, for the first layer of dense networks; without it more is pruned, and less is right.

    References
    ----------
    Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
    """

    is_improper: ClassVar[bool] = True
    makes_noise: ClassVar[bool] = True

    group: Grouping = "auto"
    max_sd: float | None = None

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "max_sd": constraints.interval(1e-6, 1e6)
    }

    def program(self, slot: Slot) -> "NormalJeffreysProgram":
        """Return the program with sites for the group scales and the standardised weights."""
        return NormalJeffreysProgram(slot, slot.group_shape(self.group), self.max_sd)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> GroupNormalJeffreys:
        """Gaussian group scales around one, Gaussian standardised weights."""
        return GroupNormalJeffreys(
            program,
            slot=slot.name,
            group_shape=slot.group_shape(self.group),
            init={slot.name + "_base": slot.value},
            init_scale=init_scale,
        )

    def proper(self) -> str:
        """Return the same with scales that are bounded on both sides."""
        return f"TruncatedNormalJeffreys(group={self.group})"


class NormalJeffreysProgram(ScaledProgram):
    """Pyro program of `NormalJeffreys` for one slot, non-centred."""

    def forward(self) -> Tensor:
        """Sample group scales and standardised weights; return their product."""
        scales = LogUniform().expand([self.group_shape.numel()]).to_event(1)
        return self.scaled(pyro.sample(f"{self.slot_name}_z", scales))


@structured
@dataclass(frozen=True)
class TruncatedNormalJeffreys(StructuredPrior):
    r"""A log-uniform scale for each group between two bounds: proper, and made for sampling.

    .. math::
        w_{ij} \sim N(0, e^{2 u_i}), \quad u_i \sim \mathrm{Uniform}(a, b)

    Between the bounds it is `NormalJeffreys`; a weight with a scale of its own is log-uniform
    between :math:`e^a` and :math:`e^b`, flat below and Gaussian above (`SmoothLogUniform`).

    Parameters
    ----------
    low, high
        Bounds :math:`a < b` of the logarithm of the scale.
    group
        Which weights share a scale.

    References
    ----------
    Hron, Matthews and Ghahramani (2018), *Variational Bayesian dropout: pitfalls and fixes*, on
    why the unbounded prior has no posterior.
    """

    low: float = -8.0
    high: float = 2.0
    group: Grouping = "auto"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        # Scales and their squares must be normal numbers, also in float32.
        "low": constraints.interval(-40, 40),
        "high": constraints.interval(-40, 40),
    }

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise PriorError(
                f"TruncatedNormalJeffreys needs low < high, the bounds of the log-scale. "
                f"Got low={self.low:g}, high={self.high:g}."
            )

    def program(self, slot: Slot) -> "TruncatedNormalJeffreysProgram":
        """Return the program with sites for the logarithms of the scales and the weights."""
        group_shape = slot.group_shape(self.group)
        return TruncatedNormalJeffreysProgram(slot, group_shape, self.low, self.high)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> MeanField:
        """Gaussian weights, and a transformed Gaussian for every bounded log-scale."""
        return MeanField(program, init={slot.name: slot.value}, init_scale=init_scale)


class TruncatedNormalJeffreysProgram(Program):
    """Pyro program of `TruncatedNormalJeffreys` for one slot."""

    zero: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, slot: Slot, group_shape: torch.Size, low: float, high: float) -> None:
        super().__init__(slot)
        self.group_shape = group_shape
        for name, value in {"zero": 0.0, "low": low, "high": high}.items():
            self.register_buffer(name, slot.value.new_tensor(value))

    def forward(self) -> Tensor:
        """Sample the log-scale of every group, then the slot."""
        groups = [self.group_shape.numel()]
        uniform = dist.Uniform(self.low, self.high).expand(groups).to_event(1)
        log_scale = pyro.sample(f"{self.slot_name}_log_scale", uniform)
        scale = log_scale.exp().reshape(log_scale.shape[:-1] + self.group_shape)
        shape = torch.broadcast_shapes(scale.shape, self.slot_shape)
        fn = dist.Normal(self.zero, scale).expand(shape).to_event(len(self.slot_shape))
        value: Tensor = pyro.sample(self.slot_name, fn)
        return value
