"""The normal prior with one fitted variance per weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from guides.empirical_bayes import EmpiricalBayes as EmpiricalBayesGuide
from zoo.distributions import EmpiricalBayesNormal
from zoo.network.slots import Slot
from zoo.priors.program import FittedProgram, Program
from zoo.priors.structured import StructuredPrior, structured


@structured
@dataclass(frozen=True)
class EmpiricalBayes(StructuredPrior):
    r"""A normal prior whose variances are fitted to the posterior, weight by weight.

    .. math:: w_k \sim N(0, s_k^2), \quad s_k^2 = \sigma_k^2 + \mu_k^2

    The variance is the one that maximises the ELBO for a posterior :math:`N(\mu_k, \sigma_k^2)`,
    and the divergence is then :math:`\frac12 \log(1 + \mu_k^2 / \sigma_k^2)`.

    References
    ----------
    Kharitonov, Molchanov and Vetrov (2018), *Variational Dropout via Empirical Bayes*.
    """

    def program(self, slot: Slot) -> "EmpiricalBayesProgram":
        """Return the program with the weights as its one site."""
        return EmpiricalBayesProgram(slot)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> EmpiricalBayesGuide:
        """Gaussian weights, which the prior follows."""
        assert isinstance(program, EmpiricalBayesProgram)
        return EmpiricalBayesGuide(
            program,
            slot=slot.name,
            init={slot.name: slot.value},
            init_scale=init_scale,
            fit_prior=program.fit,
        )


class EmpiricalBayesProgram(FittedProgram):
    """Pyro program of `EmpiricalBayes` for one slot; standard normal until a guide has run."""

    guide_loc: Tensor
    guide_scale: Tensor

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot)
        self.register_buffer("guide_loc", torch.zeros_like(slot.value))
        self.register_buffer("guide_scale", torch.ones_like(slot.value))

    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Take over the moments of the posterior."""
        self.guide_loc, self.guide_scale = loc, scale

    def normal(self) -> EmpiricalBayesNormal:
        """Return the normal with the variances that fit."""
        return EmpiricalBayesNormal(self.guide_loc, self.guide_scale)
