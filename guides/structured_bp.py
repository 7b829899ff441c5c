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
#: `ABOVE` only: the family has a ridge along which location and scale grow together.
ABOVE = 5.0
LOG_SCALE_BOUNDS = (-20.0, 5.0)
#: A unit whose mean is this much smaller than the largest of its layer is removed as well.
SMALLEST_MEAN = 1e-4


class TruncatedLogNormalPosterior(SitePosterior):
    r"""Truncated log-normal posterior of one site of multipliers.

    .. math:: q(\theta) = \frac1\theta \mathrm{TruncatedNormal}(\log\theta \mid \mu, \sigma, a, b)

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
        self.loc = nn.Parameter(loc)
        self.log_scale = nn.Parameter(torch.full_like(loc, math.log(init_scale)))
        self.bounds = (low, high + ABOVE)
        self.kl_scale = kl_scale
        self.register_buffer("low", loc.new_tensor(low))
        self.register_buffer("high", loc.new_tensor(high))

    def elementwise(self) -> TruncatedLogNormal:
        """Return the current posterior, one element of a batch for each multiplier."""
        scale = self.log_scale.clamp(*LOG_SCALE_BOUNDS).exp()
        return TruncatedLogNormal(self.loc.clamp(*self.bounds), scale, self.low, self.high)

    def distribution(self) -> Any:
        """Return the current posterior as a Pyro distribution."""
        return self.elementwise().to_event(self.event_dim)

    def median(self) -> Tensor:
        """Return the median."""
        return self.elementwise().icdf(torch.full_like(self.loc, 0.5))

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
