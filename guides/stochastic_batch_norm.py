"""Batch statistics as random variables, fitted by matching moments.

Atanov, Ashukha, Molchanov, Neklyudov and Vetrov (2018), *Uncertainty Estimation via Stochastic
Batch Normalization*.
"""

import pyro
import torch
from pyro.distributions import LogNormal
from torch import Tensor

from guides.slot import LocScale, SlotGuide

#: Initial standard deviation, and the smallest one afterwards. Without it a statistic that never
#: changes would have no density.
START_SCALE = 1e-2
MIN_SCALE = 1e-6


class Moments:
    """Mean and variance of a stream of tensors, in one pass and in float64 (Welford 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)

    def update(self, value: Tensor) -> None:
        """Add one tensor; all must have the same shape."""
        value = value.detach().double()
        self.count += 1
        difference = value - self._mean
        self._mean = self._mean + difference / self.count
        self._squares = self._squares + difference * (value - self._mean)

    @property
    def mean(self) -> Tensor:
        """Mean of the tensors."""
        if not self.count:
            raise ValueError("no value has been seen, so there is no mean")
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Population variance of the tensors, with divisor n."""
        if not self.count:
            raise ValueError("no value has been seen, so there is no variance")
        return self._squares / self.count

    @property
    def scale(self) -> Tensor:
        """Standard deviation, at least `MIN_SCALE`."""
        return self.variance.clamp(min=0).sqrt().clamp(min=MIN_SCALE)


class StochasticBatchNormGuide(SlotGuide):
    r"""Distribution of one statistic of a normalisation layer over mini-batches.

    A mean is Normal. A variance is log-normal, :math:`r(\sigma^2) = \mathrm{LN}(2 m_\sigma, 4
    s_\sigma^2)`, which is the same as :math:`r(\sigma) = \mathrm{LN}(m_\sigma, s_\sigma^2)`. The
    parameters are moments over the batches and not trained by gradients.

    Parameters
    ----------
    slot
        Name of the statistic.
    init
        The running statistic of the layer; for a variance its logarithm.
    is_variance
        Whether it is a variance.
    """

    def __init__(self, slot: str, init: Tensor, *, is_variance: bool) -> None:
        super().__init__(slot)
        self.is_variance = is_variance
        self.w = LocScale(init, START_SCALE).requires_grad_(False)

    def guide(self) -> None:
        """Sample the statistic of every channel."""
        if self.is_variance:
            pyro.sample(self.slot, LogNormal(self.w.loc, self.w.scale).to_event(1))
        else:
            pyro.sample(self.slot, self.w.normal())

    @torch.no_grad()
    def match(self, moments: Moments) -> None:
        """Take the moments of the statistic; for a variance, those of its logarithm."""
        self.w.loc.copy_(moments.mean)
        self.w.log_scale.copy_(moments.scale.log())
