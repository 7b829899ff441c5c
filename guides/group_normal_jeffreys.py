"""Group normal-Jeffreys: Gaussian group scales and Gaussian standardised weights.

Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
"""

import pyro
import torch
from torch import Tensor

from guides.elementwise import log_dropout_rate
from guides.slot import LocScale, SlotGuide


class GroupNormalJeffreysGuide(SlotGuide):
    r"""Posterior of one weight tensor under a group normal-Jeffreys prior.

    The parameters are means and log standard deviations of the scales, initially around one, rather
    than :math:`\alpha_i = \sigma_{z_i}^2 / \mu_{z_i}^2`, whose gradient is noise for groups that
    are switched off.

    Parameters
    ----------
    slot, init, init_scale
        Name of the weight tensor, initial standardised weights and initial standard deviation.
    group_shape
        Shape of one scale per group, broadcastable with the weights.
    """

    def __init__(
        self, slot: str, init: Tensor, *, group_shape: torch.Size, init_scale: float = 0.01
    ) -> None:
        super().__init__(slot)
        self.group_shape = group_shape
        self.z = LocScale(init.new_ones(group_shape.numel()), init_scale)
        self.base = LocScale(init, init_scale)

    def guide(self) -> None:
        """Sample the scale of every group and the standardised weights."""
        pyro.sample(self.site("z"), self.z.normal())
        pyro.sample(self.site("base"), self.base.normal())

    def group_scores(self) -> Tensor:
        r"""Return :math:`\log\alpha_i` of every group's scale: large for noise."""
        return log_dropout_rate(self.z.loc, self.z.log_scale)

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        r"""Marginal mean and variance of the weights.

        .. math::
            E w = \mu_z \mu, \quad V w = \sigma_z^2 (\sigma^2 + \mu^2) + \sigma^2 \mu_z^2
        """
        z = self.z.loc.double().reshape(self.group_shape)
        z_variance = (2 * self.z.log_scale.double()).exp().reshape(self.group_shape)
        loc, variance = self.base.loc.double(), (2 * self.base.log_scale.double()).exp()
        spread = z_variance * (variance + loc.square())
        return z * loc, spread + variance * z.square()
