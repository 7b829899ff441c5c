"""The normal prior with one fitted mean and variance per slot."""

from dataclasses import dataclass

import pyro.distributions as dist
from torch import Tensor

from guides.graves import Graves as GravesGuide
from zoo.distributions import graves_prior
from zoo.network.slots import Slot
from zoo.priors.program import FittedProgram, Program
from zoo.priors.structured import StructuredPrior, structured


@structured
@dataclass(frozen=True)
class Graves(StructuredPrior):
    r"""A normal prior whose mean and variance are fitted to the posterior, one of each per slot.

    .. math:: w_i \sim N(m, v), \quad m = \frac1n \sum_i \mu_i, \quad
        v = \frac1n \sum_i [\sigma_i^2 + (\mu_i - m)^2]

    References
    ----------
    Graves (2011), *Practical Variational Inference for Neural Networks*.
    """

    def program(self, slot: Slot) -> "GravesProgram":
        """Return the program with the weights as its one site."""
        return GravesProgram(slot)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> GravesGuide:
        """Gaussian weights, which the prior follows."""
        assert isinstance(program, GravesProgram)
        return GravesGuide(
            program,
            slot=slot.name,
            init={slot.name: slot.value},
            init_scale=init_scale,
            fit_prior=program.fit,
        )


class GravesProgram(FittedProgram):
    """Pyro program of `Graves` for one slot; standard normal until a guide has run."""

    prior_loc: Tensor
    prior_scale: Tensor

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot)
        self.register_buffer("prior_loc", slot.value.new_zeros(()))
        self.register_buffer("prior_scale", slot.value.new_ones(()))

    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Take the mean and the spread of all weights together."""
        self.prior_loc, variance = graves_prior(loc, scale)
        self.prior_scale = variance.sqrt()

    def normal(self) -> dist.Normal:
        """Return the normal that fits best."""
        return dist.Normal(self.prior_loc, self.prior_scale)
