"""Variational dropout: Gaussian noise proportional to its mean, with a learned rate.

Kingma, Salimans and Welling (2015), *Variational Dropout and the Local Reparameterization Trick*.
"""

import math
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from guides.log_scale_normal import LogScaleNormal
from guides.slot import SlotGuide

#: Keeps the scale of a weight of zero positive.
TINY = 1e-16


class DropoutNoise(nn.Module):
    r"""Parameters of one site: the mean, and rates that its elements share.

    .. math:: \alpha_g = \alpha_{\max}\, \mathrm{sigmoid}(\rho_g)

    Parameters
    ----------
    init
        Initial :math:`\mu`.
    rate, max_rate
        Initial variance :math:`\alpha`, and its upper bound.
    rate_shape
        Shape of the rates, broadcastable with the site.
    learn_mean, learn_rate
        Whether :math:`\mu` and :math:`\rho` are trained.
    """

    loc: Tensor
    logit: Tensor
    log_max_rate: Tensor

    def __init__(
        self,
        init: Tensor,
        *,
        rate: float,
        max_rate: float,
        rate_shape: torch.Size,
        learn_mean: bool,
        learn_rate: bool,
    ) -> None:
        super().__init__()
        loc = init.detach().clone()
        logit = loc.new_full(rate_shape, math.log(rate) - math.log(max_rate - rate))
        for name, value, learned in (("loc", loc, learn_mean), ("logit", logit, learn_rate)):
            if learned:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        self.register_buffer("log_max_rate", loc.new_tensor(math.log(max_rate)))

    def log_rate(self) -> Tensor:
        r"""Return :math:`\log\alpha`."""
        return self.log_max_rate + logsigmoid(self.logit)

    @property
    def log_scale(self) -> Tensor:
        """Logarithm of the standard deviation."""
        return 0.5 * (self.log_rate() + (self.loc.square() + TINY).log())


class VariationalDropoutGuide(SlotGuide):
    r"""Posterior of one slot, :math:`q(s_i) = N(\mu_i, \alpha_{g(i)} \mu_i^2)`.

    Parameters
    ----------
    slot, init
        Name of the slot, and initial means.
    **noise
        Other parameters of `DropoutNoise`.
    """

    def __init__(self, slot: str, init: Tensor, **noise: Any) -> None:
        super().__init__(slot)
        self.w = DropoutNoise(init, **noise)

    def guide(self) -> None:
        """Sample the noise, or the weights."""
        noise = LogScaleNormal(self.w.loc, self.w.log_scale)
        pyro.sample(self.slot, noise.to_event(self.w.loc.dim()))

    def dropout_rates(self) -> Tensor:
        r"""Return :math:`p = \alpha / (1 + \alpha)`, the rates of matching Bernoulli dropout."""
        return torch.sigmoid(self.w.log_rate())
