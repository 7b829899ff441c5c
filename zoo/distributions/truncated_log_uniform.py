"""The proper log-uniform prior on a bounded positive interval."""

import math
from typing import Any

import torch
from torch import Tensor

from guides.distribution_base import analytic_kl
from guides.distributions import ExpWindow, TruncatedLogNormal, kl_truncated_uniform
from zoo.distributions.smooth_log_uniform import LogBounded

__all__ = ["TruncatedLogUniform"]


class TruncatedLogUniform(ExpWindow, LogBounded):
    r"""Log-uniform distribution on a bounded interval: log θ is uniform on [a, b].

    .. math:: p(θ) = \frac{1}{(b - a)\,θ}, \quad e^a ≤ θ ≤ e^b

    The prior of the multiplicative noise in `zoo.models.structured_bp`; `kl_truncated_uniform` is
    the divergence of a `TruncatedLogNormal` guide with the same bounds.

    Parameters
    ----------
    low, high
        Bounds a < b of **log θ**; the published choice is −20 and 0.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of θ, −∞ outside the interval."""
        if self._validate_args:
            self._validate_sample(value)
        low, high = self._bounds()
        inside = (value >= low) & (value <= high)
        log_value = torch.where(inside, value, high).log()
        return torch.where(inside, -log_value - (self.high - self.low).log(), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a draw below `value`."""
        if self._validate_args:
            self._validate_sample(value)
        low, high = self._bounds()
        log_value = torch.minimum(torch.maximum(value, low), high).log()
        return ((log_value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile at the probability `value`."""
        low, high = self._bounds()
        drawn = (self.low + value * (self.high - self.low)).exp()
        return torch.minimum(torch.maximum(drawn, low), high)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through the bounds."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.icdf(torch.rand(shape, dtype=self.low.dtype, device=self.low.device))

    @property
    def mean(self) -> Tensor:
        """Expected value (e^b − e^a)/(b − a)."""
        width = self.high - self.low
        return self.high.exp() * -torch.expm1(-width) / width

    @property
    def variance(self) -> Tensor:
        """Variance e^{a+b} sinh(h) (h cosh(h) − sinh(h))/h² with h = (b − a)/2."""
        half = 0.5 * (self.high - self.low)
        decay = torch.exp(-2 * half)
        # h cosh(h) − sinh(h) = Σ 2k h^{2k+1}/(2k+1)! where the difference would cancel
        small = half.clamp(max=1.0)
        series = torch.zeros_like(half)
        for k in range(9, 0, -1):
            series = (series + 2 * k / math.factorial(2 * k + 1)) * small * small
        scaled = torch.where(
            half < 1,
            series * small * torch.exp(-small),
            0.5 * (half * (1 + decay) - (1 - decay)),
        )
        return torch.exp(2 * self.high) * 0.5 * -torch.expm1(-2 * half) * scaled / (half * half)


@analytic_kl(TruncatedLogNormal, TruncatedLogUniform)
def _kl(p: TruncatedLogNormal, q: TruncatedLogUniform) -> Tensor:
    return kl_truncated_uniform(p, q.low, q.high)
