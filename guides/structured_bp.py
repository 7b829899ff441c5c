"""Structured Bayesian pruning: truncated log-normal multipliers of units, and which to remove."""

import math
from contextlib import nullcontext

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from guides.distributions import TruncatedLogNormal
from guides.slot import SlotGuide

#: Bounds of the parameters, from the released code. The location may leave the window [a, b] by
#: `ABOVE` only: the family has a ridge along which location and scale grow together. In training
#: the scale stays below the width of the window, see `TruncatedLocScale.constrain`.
ABOVE = 5.0
LOG_SCALE_BOUNDS = (-20.0, 5.0)
#: A unit whose mean is this much smaller than the largest of its layer is removed as well.
SMALLEST_MEAN = 1e-4


class TruncatedLocScale(nn.Module):
    r"""Parameters of truncated log-normal multipliers.

    .. math:: q(\theta) = \frac1\theta \mathrm{TruncatedNormal}(\log\theta \mid \mu, \sigma, a, b)

    As :math:`\sigma` passes the width :math:`w = b - a` of the window, the distribution becomes
    uniform and the pull on :math:`\mu` falls like :math:`\sigma^{-2}`: training in :math:`\mu`
    stops there, even where another posterior is better. The parameter is therefore a level
    :math:`l` that is about the mean of :math:`\log\theta`, whether the distribution is narrow or
    wide,

    .. math:: \mu = l + (l - c) \frac{12 \sigma^2}{w^2}, \qquad c = \frac{a + b}{2}

    because the truncated distribution has a variance between :math:`\sigma^2` and :math:`w^2 / 12`.

    Parameters
    ----------
    init
        Multipliers; their logarithm is where :math:`\mu` starts.
    low, high
        Bounds of :math:`\log\theta`.
    init_scale
        :math:`\sigma` at the start.
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
        r"""Move to a location :math:`\mu` and a scale."""
        self.log_scale.copy_(log_scale)
        self.level.copy_(self._level_of(loc))

    def _spread(self) -> Tensor:
        r"""Return :math:`12 \sigma^2 / w^2`."""
        ratio = self.log_scale.clamp(*LOG_SCALE_BOUNDS).exp() / (self.high - self.low)
        return 12 * ratio.square()

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
        """Move the parameters to the nearest values from which training can go on.

        Beyond a bound there is no gradient. With a scale of the width of the window the posterior
        is within 0.001 nats of uniform; it need not grow further.
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
    r"""Posterior of the multipliers of one layer, :math:`y_i = \theta_i x_i`.

    .. math:: q(\theta_i) = \mathrm{LN}_{[a, b]}(\theta_i \mid \mu_i, \sigma_i^2)

    A unit is kept if its signal-to-noise ratio :math:`E\theta / \sqrt{V\theta}` is above one. The
    multipliers of a unit at the lower bound are tiny and can still have a large ratio. So a unit is
    also removed if its mean is below :math:`10^{-4}` of the largest in its layer, which is our
    addition to the published rule.

    Parameters
    ----------
    slot
        Name of the site.
    init
        Where the multipliers start.
    low, high
        Bounds :math:`a` and :math:`b` of :math:`\log\theta`.
    kl_scale
        Weight of the divergence in the objective.
    init_scale
        :math:`\sigma` at the start.

    References
    ----------
    Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via Log-Normal
    Multiplicative Noise*.
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
        """Return the distribution of the multipliers, one element of a batch for each."""
        return TruncatedLogNormal(self.w.loc, self.w.scale, self.w.low, self.w.high)

    def group_scores(self) -> Tensor:
        r"""Score each unit: positive if it is noise, or nothing.

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
