"""Structured Bayesian pruning: truncated log-normal multipliers of units, and which to remove."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from guides.distributions import TruncatedLogNormal
from guides.mean_field import MeanField, SitePosterior

#: Bounds of the parameters, from the released code. The location may leave the window [a, b] by
#: `ABOVE` only: the family has a ridge along which location and scale grow together. In training
#: the scale stays below the width of the window, see `TruncatedLogNormalPosterior.constrain`.
ABOVE = 5.0
LOG_SCALE_BOUNDS = (-20.0, 5.0)
#: A unit whose mean is this much smaller than the largest of its layer is removed as well.
SMALLEST_MEAN = 1e-4


class TruncatedLogNormalPosterior(SitePosterior):
    r"""Truncated log-normal posterior of one site of multipliers.

    .. math:: q(\theta) = \frac1\theta \mathrm{TruncatedNormal}(\log\theta \mid \mu, \sigma, a, b)

    As :math:`\sigma` passes the width :math:`w = b - a` of the window, the law becomes uniform and
    the pull on :math:`\mu` falls like :math:`\sigma^{-2}`: training in :math:`\mu` stops there,
    even where another posterior is better. The parameter is therefore a level :math:`l` that is
    about the mean of :math:`\log\theta`, whether the law is narrow or wide,

    .. math:: \mu = l + (l - c) \frac{12 \sigma^2}{w^2}, \qquad c = \frac{a + b}{2}

    because the truncated law has a variance between :math:`\sigma^2` and :math:`w^2 / 12`.

    Parameters
    ----------
    site
        The site of the traced model; the logarithm of its value is where :math:`\mu` starts.
    init_scale
        :math:`\sigma` at the start.
    low, high
        Bounds of :math:`\log\theta`.
    kl_scale
        Weight of the divergence in the objective.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        site: Mapping[str, Any],
        init_scale: float,
        *,
        low: float,
        high: float,
        kl_scale: float = 1.0,
    ) -> None:
        super().__init__(site)
        loc = site["value"].detach().log()
        self.level = nn.Parameter(torch.zeros_like(loc))
        self.log_scale = nn.Parameter(torch.zeros_like(loc))
        self.bounds = (low, high + ABOVE)
        self.kl_scale = kl_scale
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
    def loc(self) -> Tensor:  # type: ignore[override]
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

    def elementwise(self) -> TruncatedLogNormal:
        """Return the current posterior, one element of a batch for each multiplier."""
        scale = self.log_scale.clamp(*LOG_SCALE_BOUNDS).exp()
        return TruncatedLogNormal(self.loc, scale, self.low, self.high)

    def distribution(self) -> Any:
        """Return the current posterior as a Pyro distribution."""
        return self.elementwise().to_event(self.event_dim)

    def median(self) -> Tensor:
        """Return the median."""
        return self.elementwise().icdf(torch.full_like(self.level, 0.5))

    def sample(self, name: str) -> Tensor:
        """Run the sample statement of this site, with the weight of its divergence."""
        if self.kl_scale == 1:
            return super().sample(name)
        with poutine.scale(scale=self.kl_scale):
            return super().sample(name)


class StructuredBP(MeanField):
    r"""Posterior of the multipliers of one layer, :math:`y_i = \theta_i x_i`.

    A unit is kept if its signal-to-noise ratio :math:`E\theta / \sqrt{V\theta}` is above one. The
    multipliers of a unit that sits at the lower bound are tiny and can still be steady; so a unit
    is also removed if its mean is :math:`10^{-4}` of the largest in its layer, which is our
    addition to the published rule.

    Parameters
    ----------
    program
        Pyro program with one site, named like the slot.
    slot
        Name of the site.
    low, high
        Bounds of :math:`\log\theta`.
    kl_scale
        Weight of the divergence in the objective.
    init, init_scale
        As for `MeanField`.

    References
    ----------
    Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via Log-Normal
    Multiplicative Noise*.
    """

    #: Units with larger scores are removed.
    default_threshold = 0.0

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        slot: str,
        low: float,
        high: float,
        kl_scale: float = 1.0,
        init: Mapping[str, Tensor],
        init_scale: float = 0.01,
    ) -> None:
        family = partial(TruncatedLogNormalPosterior, low=low, high=high, kl_scale=kl_scale)
        super().__init__(program, init=init, init_scale=init_scale, posterior=family)
        self.slot = slot
        self.group_shape = init[slot].shape

    def _multipliers(self) -> TruncatedLogNormal:
        posterior = self[self.slot]
        assert isinstance(posterior, TruncatedLogNormalPosterior)
        return posterior.elementwise()

    def constrain(self) -> None:
        """Bring the parameters back to where training can go on."""
        posterior = self[self.slot]
        assert isinstance(posterior, TruncatedLogNormalPosterior)
        posterior.constrain()

    def group_scores(self) -> Tensor:
        r"""Score each unit: positive if it is noise, or nothing.

        :math:`-\log\mathrm{SNR}_i`, or :math:`\log(10^{-4} \max_j E\theta_j / E\theta_i)` where
        that is positive and larger.
        """
        multipliers = self._multipliers()
        log_mean = multipliers.mean.log()
        smallness = math.log(SMALLEST_MEAN) + log_mean.max() - log_mean
        is_small = smallness > 0
        return torch.maximum(-multipliers.log_snr, smallness.where(is_small, -math.inf)).flatten()

    def means(self) -> Tensor:
        r"""Return :math:`E\theta`, by which the weights of a pruned network are multiplied."""
        return self._multipliers().mean
