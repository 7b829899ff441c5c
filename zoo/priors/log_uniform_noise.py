"""The log-uniform prior of multipliers, with the guide of structured Bayesian pruning."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch.distributions import constraints

from guides.base import Guide
from guides.structured_bp import StructuredBP
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.program import PlainProgram, Program
from zoo.priors.spec import Prior
from zoo.priors.structured import StructuredPrior, structured


@structured
@dataclass(frozen=True)
class LogUniformNoise(StructuredPrior):
    r"""Multipliers between almost nothing and one, uniform in the logarithm.

    .. math:: \log\theta_i \sim \mathrm{Uniform}(a, b)

    It is proper. The posterior is a truncated log-normal, whose divergence has a closed form.

    Parameters
    ----------
    low, high
        Bounds :math:`a < b` of :math:`\log\theta`.
    group
        ``unit``: a multiplier for each unit or channel; ``layer``: one for all of them.
    kl_scale
        Weight of the divergence in the objective. Above one it prunes harder, and the objective is
        no longer a bound on the evidence; the model stays the same.

    References
    ----------
    Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via Log-Normal
    Multiplicative Noise*.
    """

    low: float = -20.0
    high: float = 0.0
    group: Literal["unit", "layer"] = "unit"
    kl_scale: float = 1.0

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        # The exponentials of both must be normal numbers, also in float32.
        "low": constraints.interval(-80.0, 80.0),
        "high": constraints.interval(-80.0, 80.0),
        "kl_scale": constraints.interval(1e-6, 1e6),
    }

    def program(self, slot: Slot) -> Program:
        """Return the program with one site, named like the slot."""
        if slot.layer != "activation":
            raise PriorError(
                f"LogUniformNoise is a prior of noise on activations, such as 0.input, and not of "
                f"{slot.name!r}."
            )
        if self.low >= self.high:
            raise PriorError(
                f"LogUniformNoise needs low < high, the bounds of the logarithm. "
                f"Got low={self.low:g}, high={self.high:g}."
            )
        bounds = (("low", self.low), ("high", self.high))
        return NoiseProgram(self._grouped(slot), Prior("TruncatedLogUniform", bounds))

    def guide(self, slot: Slot, program: Program, init_scale: float) -> StructuredBP:
        """Return truncated log-normal multipliers that start at the upper bound."""
        start = self._grouped(slot).value
        return StructuredBP(
            program,
            slot=slot.name,
            low=self.low,
            high=self.high,
            kl_scale=self.kl_scale,
            init={slot.name: start.new_full(start.shape, self.high).exp()},
            init_scale=init_scale,
        )

    def _grouped(self, slot: Slot) -> Slot:
        return replace(slot, value=slot.value[:1]) if self.group == "layer" else slot


class NoiseProgram(PlainProgram):
    """Pyro program of `LogUniformNoise` for one slot."""

    is_constrained = True

    def constrain(self, part: Guide) -> None:
        """Keep the posterior where it has gradients."""
        if isinstance(part, StructuredBP):
            part.constrain()
