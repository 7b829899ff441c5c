"""The log-uniform prior with the guide of variational dropout."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.distributions import constraints

from guides.variational_dropout import VariationalDropout
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.log_uniform import LogUniformProgram
from zoo.priors.program import Program
from zoo.priors.structured import StructuredPrior, structured


@structured
@dataclass(frozen=True)
class GaussianDropout(StructuredPrior):
    r"""Log-uniform values whose posterior is Gaussian dropout.

    .. math:: p(s) \propto |s|^{-1}, \quad q(s) = N(\mu, \alpha\mu^2), \quad
        \alpha = \frac{p}{1 - p}

    On an activation :math:`\mu = 1`; on a weight it is trained. The prior is improper: only
    differences of the ELBO mean something, and it cannot be sampled. ``SmoothLogUniform`` is its
    proper counterpart.

    Parameters
    ----------
    p
        Dropout rate at the start.
    max_p
        Upper bound of the rate. The published one is a half, :math:`\alpha \le 1`.
    share
        What has one rate in common: the ``layer``, a ``unit`` (for weights: the input units of a
        linear layer, the filters of a convolution), or nothing (``element``). With ``fixed`` the
        rate stays at ``p``, which is Gaussian dropout without learning it.

    References
    ----------
    Kingma, Salimans and Welling (2015), *Variational Dropout and the Local Reparameterization
    Trick*.
    """

    is_improper: ClassVar[bool] = True

    p: float = 0.2
    max_p: float = 0.5
    share: Literal["layer", "unit", "element", "fixed"] = "layer"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "p": constraints.interval(1e-6, 0.999),
        "max_p": constraints.interval(1e-6, 0.9999),
    }

    def program(self, slot: Slot) -> Program:
        """Return the program with one site, named like the slot."""
        return LogUniformProgram(slot)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> VariationalDropout:
        """Gaussian, with a standard deviation in proportion to the mean."""
        rate, learned = _variance(self.p), self.share != "fixed"
        if learned and self.p >= self.max_p:
            raise PriorError(
                f"GaussianDropout needs p < max_p. Got p={self.p:g}, max_p={self.max_p:g}."
            )
        return VariationalDropout(
            program,
            slot=slot.name,
            init={slot.name: slot.value},
            rate=rate,
            max_rate=_variance(self.max_p) if learned else 2 * rate,  # a fixed one needs no bound
            rate_shape=self._rate_shape(slot),
            learn_mean=slot.layer != "activation",
            learn_rate=learned,
        )

    def _rate_shape(self, slot: Slot) -> torch.Size:
        if self.share == "element":
            return slot.shape
        if self.share == "unit":
            return slot.group_shape("auto")
        return torch.Size([1] * len(slot.shape))


def _variance(p: float) -> float:
    """Return the variance of the noise that matches a dropout rate."""
    return p / (1 - p)
