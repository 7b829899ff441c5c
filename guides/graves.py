"""Graves: Gaussian weights, pruned by the posterior density at zero.

Graves (2011), *Practical Variational Inference for Neural Networks*.
"""

from typing import ClassVar

import pyro
import torch
from torch import Tensor

from guides.elementwise import Elementwise
from guides.slot import LocScale


def graves_relevance(loc: Tensor, scale: Tensor) -> Tensor:
    r"""Density of the guide at zero relative to its peak; weights are pruned above a threshold.

    .. math:: λ_i = q(0)/q(μ_i) = \exp(-μ_i²/(2σ_i²))

    Parameters
    ----------
    loc, scale
        Means μ and standard deviations σ of a normal guide.
    """
    return torch.exp(-0.5 * (loc / scale).square())


class GravesGuide(Elementwise):
    r"""Posterior of one weight tensor, :math:`q(w_i) = N(\mu_i, \sigma_i^2)`.

    Parameters
    ----------
    slot, init, init_scale
        Name of the weight tensor, initial means and initial standard deviation.
    """

    #: Weights with a larger relative density at zero are pruned: a mean below 0.61 sds.
    default_threshold: ClassVar[float] = 0.83

    def __init__(self, slot: str, init: Tensor, *, init_scale: float = 0.01) -> None:
        super().__init__(slot)
        self.w = LocScale(init, init_scale)

    def guide(self) -> None:
        """Sample the weights."""
        pyro.sample(self.slot, self.w.normal())

    def group_scores(self) -> Tensor:
        r"""Return :math:`\lambda` of every weight, flat: near one for noise, zero for signal."""
        loc, variance = self.weight_moments()
        return graves_relevance(loc, variance.sqrt()).flatten()
