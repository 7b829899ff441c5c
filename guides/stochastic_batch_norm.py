"""Batch statistics as random variables: distributions that are fitted by matching moments."""

import pyro
import torch
from pyro.distributions import LogNormal
from torch import Tensor

from guides.slot import LocScale, SlotGuide

#: Standard deviation before any batch was seen, and the smallest one afterwards. A statistic that
#: never changes has no density without it.
START_SCALE = 1e-2
MIN_SCALE = 1e-6


class Moments:
    """Mean and variance of a stream of tensors, in one pass and in double precision.

    References
    ----------
    Welford (1962), *Note on a Method for Calculating Corrected Sums of Squares and Products*.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def update(self, value: Tensor) -> None:
        """Take one more tensor in; all must have the same shape."""
        value = value.detach().double()
        if self._mean is None or self._squares is None:
            self._mean, self._squares = torch.zeros_like(value), torch.zeros_like(value)
        self.count += 1
        difference = value - self._mean
        self._mean = self._mean + difference / self.count
        self._squares = self._squares + difference * (value - self._mean)

    @property
    def mean(self) -> Tensor:
        """Mean of what was seen."""
        if self._mean is None:
            raise ValueError("no value has been seen, so there is no mean")
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Population variance of what was seen, with divisor n: the moment that is matched."""
        if self._squares is None:
            raise ValueError("no value has been seen, so there is no variance")
        return self._squares / self.count

    @property
    def scale(self) -> Tensor:
        """Standard deviation, at least `MIN_SCALE`."""
        return self.variance.clamp(min=0).sqrt().clamp(min=MIN_SCALE)


class StochasticBatchNormGuide(SlotGuide):
    r"""Distribution of one statistic of a normalisation layer over mini-batches.

    A mean is normal and a variance log-normal, channel by channel,

    .. math:: r(\mu) = N(m_\mu, s_\mu^2), \qquad r(\sigma^2) = \mathrm{LN}(2 m_\sigma, 4 s_\sigma^2)

    the latter being the same as :math:`r(\sigma) = \mathrm{LN}(m_\sigma, s_\sigma^2)`. The
    parameters are moments over the batches, :math:`m_\mu = E \mu(B)`, :math:`s_\mu^2 = \mathrm{Var}
    \mu(B)`, :math:`m_\sigma = E \log \sigma(B)`, :math:`s_\sigma^2 = \mathrm{Var} \log \sigma(B)`,
    which minimise :math:`\mathrm{KL}(p \| r)`. No gradient changes them.

    Parameters
    ----------
    slot
        Name of the statistic.
    init
        The running statistic of the layer; for a variance its logarithm.
    is_variance
        Whether it is a variance.

    References
    ----------
    Atanov, Ashukha, Molchanov, Neklyudov and Vetrov (2018), *Uncertainty Estimation via Stochastic
    Batch Normalization*.
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
        """Take the moments of the statistic; of a variance, those of its logarithm."""
        self.w.loc.copy_(moments.mean)
        self.w.log_scale.copy_(moments.scale.log())
