"""Group horseshoe: log-normal scales and Gaussian standardised weights.

Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
"""

import math
from functools import reduce
from operator import add

import pyro
import torch
from pyro.distributions import LogNormal
from torch import Tensor

from guides.slot import LocScale, SlotGuide


class GroupHorseshoeGuide(SlotGuide):
    r"""Posterior of one weight tensor under a group horseshoe prior.

    The log of a group's scale, :math:`z_i = \sqrt{s_a s_b \tilde\alpha_i \tilde\beta_i}`, is
    Gaussian with mean :math:`m_i = \frac12 \sum \mu` and variance :math:`v_i = \frac14 \sum
    \sigma^2` over the four scales. Initially :math:`\mu_{s_a} = 2\log\tau_0` and :math:`\mu_{s_b} =
    -2\log\tau_0`, so that :math:`z_i = 1` and the ELBO is meaningful from the first step.

    Parameters
    ----------
    slot, init, init_scale
        Name of the weight tensor, initial standardised weights and initial standard deviation.
    global_scale
        :math:`\tau_0` of the prior.
    group_shape
        Shape of one scale per group, broadcastable with the weights.
    """

    def __init__(
        self,
        slot: str,
        init: Tensor,
        *,
        global_scale: float,
        group_shape: torch.Size,
        init_scale: float = 0.01,
    ) -> None:
        super().__init__(slot)
        self.group_shape = group_shape
        log_scale = math.log(global_scale)
        zeros = init.new_zeros(group_shape.numel())
        self.global_a = LocScale(init.new_tensor(2 * log_scale).exp().log(), init_scale)
        self.global_b = LocScale(init.new_tensor(-2 * log_scale).exp().log(), init_scale)
        self.local_a = LocScale(zeros, init_scale)
        self.local_b = LocScale(zeros, init_scale)
        self.base = LocScale(init, init_scale)

    def guide(self) -> None:
        """Sample the four scales and the standardised weights (equations 15 and 16)."""
        s_a, s_b, alpha, beta = self.global_a, self.global_b, self.local_a, self.local_b
        pyro.sample(self.site("global_a"), LogNormal(s_a.loc, s_a.scale))
        pyro.sample(self.site("global_b"), LogNormal(s_b.loc, s_b.scale))
        pyro.sample(self.site("local_a"), LogNormal(alpha.loc, alpha.scale).to_event(1))
        pyro.sample(self.site("local_b"), LogNormal(beta.loc, beta.scale).to_event(1))
        pyro.sample(self.site("base"), self.base.normal())

    def log_scale_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the logarithm of each group's scale, shape ``(groups,)``."""
        scales = (self.global_a, self.global_b, self.local_a, self.local_b)
        means = [scale.loc.double() for scale in scales]
        variances = [(2 * scale.log_scale.double()).exp() for scale in scales]
        return reduce(add, means) / 2, reduce(add, variances) / 4

    def group_scores(self) -> Tensor:
        """Minus the log of the mode of each group's scale, :math:`v_i - m_i`: large for noise."""
        mean, variance = self.log_scale_moments()
        return variance - mean

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        r"""Marginal mean and variance of the weights.

        .. math::
            E w = e^{m + v/2} \mu, \quad
            V w = (e^v - 1) e^{2m + v} (\sigma^2 + \mu^2) + \sigma^2 e^{2m + v}
        """
        m, v = (moment.reshape(self.group_shape) for moment in self.log_scale_moments())
        loc, variance = self.base.loc.double(), (2 * self.base.log_scale.double()).exp()
        scale_square = (2 * m + v).exp()
        mean = (m + v / 2).exp() * loc
        spread = torch.expm1(v) * scale_square * (variance + loc.square())
        return mean, spread + variance * scale_square
