"""Structured Bayesian pruning: truncated log-normal multipliers of units.

Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via Log-Normal
Multiplicative Noise*.
"""

import math
from contextlib import nullcontext

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from guides.distributions import TruncatedLogNormal
from guides.slot import SlotGuide

#: Bounds of the parameters, from the released code. The location may exceed the window [a, b] by
#: `ABOVE`, because the family has a ridge along which location and scale grow together. In training
#: the scale stays below the width of the window, see `TruncatedLocScale.constrain`.
ABOVE = 5.0
LOG_SCALE_BOUNDS = (-20.0, 5.0)
#: Units whose mean is smaller than this fraction of the largest in their layer are removed too.
SMALLEST_MEAN = 1e-4


class TruncatedLocScale(nn.Module):
    r"""Parameters of truncated log-normal multipliers.

    .. math:: q(\theta) = \frac1\theta \mathrm{TruncatedNormal}(\log\theta \mid \mu, \sigma, a, b)

    When :math:`\sigma` exceeds the width :math:`w = b - a` of the window, the distribution becomes
    uniform and the gradient in :math:`\mu` falls like :math:`\sigma^{-2}`. Training in :math:`\mu`
    would stop there, even where another posterior is better. The parameter is therefore a level
    :math:`l` that is approximately the mean of :math:`\log\theta`, for narrow and wide
    distributions,

    .. math:: \mu = l + (l - c) \frac{12 \sigma^2}{w^2}, \qquad c = \frac{a + b}{2}

    because the variance of the truncated distribution is between :math:`\sigma^2` and :math:`w^2 /
    12`.

    Parameters
    ----------
    init
        Initial multipliers; their logarithm is the initial :math:`\mu`.
    low, high
        Bounds of :math:`\log\theta`.
    init_scale
        Initial :math:`\sigma`.
    """

    low: Tensor
    high: Tensor

    def __init__(self, init: Tensor, *, low: float, high: float, init_scale: float) -> None:
        super().__init__()
        loc = init.detach().log()
        self.level = nn.Parameter(torch.zeros_like(loc))
        self.log_scale = nn.Parameter(torch.zeros_like(loc))
        self.bounds = (low, high + ABOVE)
        self.register_buffer("low", loc.new_tensor(low))
        self.register_buffer("high", loc.new_tensor(high))
        self.put(loc, torch.full_like(loc, math.log(init_scale)))

    @torch.no_grad()
    def put(self, loc: Tensor, log_scale: Tensor) -> None:
        r"""Set the location :math:`\mu` and the log scale."""
        self.log_scale.copy_(log_scale)
        self.level.copy_(self._level_of(loc))

    def _spread(self) -> Tensor:
        r"""Return :math:`12 \sigma^2 / w^2`."""
        return 12 * (self.scale / (self.high - self.low)).square()

    def _level_of(self, loc: Tensor | float) -> Tensor:
        spread = self._spread()
        return (loc + 0.5 * (self.low + self.high) * spread) / (1 + spread)

    @property
    def loc(self) -> Tensor:
        r"""The location :math:`\mu`."""
        away = self.level - 0.5 * (self.low + self.high)
        return (self.level + away * self._spread()).clamp(*self.bounds)

    @torch.no_grad()
    def constrain(self) -> None:
        """Move the parameters to the nearest values that have gradients.

        If the scale is the width of the window, the posterior is within 0.001 nats of uniform, so
        it need not grow further.
        """
        self.log_scale.clamp_(
            LOG_SCALE_BOUNDS[0], math.log(self.bounds[1] - ABOVE - self.bounds[0])
        )
        lowest, highest = (self._level_of(bound) for bound in self.bounds)
        torch.clamp(self.level, lowest, highest, out=self.level)

    @property
    def scale(self) -> Tensor:
        r"""The scale :math:`\sigma`."""
        return self.log_scale.clamp(*LOG_SCALE_BOUNDS).exp()


class StructuredBPGuide(SlotGuide):
    r"""Posterior of the multipliers of one layer.

    A unit is removed if its signal-to-noise ratio is below one or, which is our addition to the
    published rule, if its mean is below :math:`10^{-4}` of the largest in its layer: the tiny
    multipliers at the lower bound can have a large ratio.

    Parameters
    ----------
    slot, init, init_scale
        Name of the site, initial multipliers and initial :math:`\sigma`.
    low, high
        Bounds :math:`a` and :math:`b` of :math:`\log\theta`.
    kl_scale
        Weight of the divergence in the objective.
    """

    #: Units with larger scores are removed.
    default_threshold = 0.0

    def __init__(
        self,
        slot: str,
        init: Tensor,
        *,
        low: float,
        high: float,
        kl_scale: float = 1.0,
        init_scale: float = 0.01,
    ) -> None:
        super().__init__(slot)
        self.w = TruncatedLocScale(init, low=low, high=high, init_scale=init_scale)
        self.kl_scale = kl_scale
        self.group_shape = init.shape

    def guide(self) -> None:
        r"""Sample the multipliers :math:`\theta_i`."""
        with poutine.scale(scale=self.kl_scale) if self.kl_scale != 1 else nullcontext():
            pyro.sample(self.slot, self.multipliers().to_event(self.w.level.dim()))

    def multipliers(self) -> TruncatedLogNormal:
        """Return the distribution of the multipliers, with one batch element for each."""
        return TruncatedLogNormal(self.w.loc, self.w.scale, self.w.low, self.w.high)

    def group_scores(self) -> Tensor:
        r"""Score each unit; positive scores mean noise or a mean near zero.

        :math:`-\log\mathrm{SNR}_i`, or :math:`\log(10^{-4} \max_j E\theta_j / E\theta_i)` where
        that is positive and larger.
        """
        multipliers = self.multipliers()
        log_mean = multipliers.mean.log()
        smallness = math.log(SMALLEST_MEAN) + log_mean.max() - log_mean
        is_small = smallness > 0
        return torch.maximum(-multipliers.log_snr, smallness.where(is_small, -math.inf)).flatten()

    def means(self) -> Tensor:
        r"""Return :math:`E\theta`, by which the weights of a pruned network are multiplied."""
        return self.multipliers().mean
