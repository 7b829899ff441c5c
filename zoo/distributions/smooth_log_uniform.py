"""The proper counterpart of the log-uniform prior, and the base of priors with log bounds."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from guides.distribution_base import Expandable

__all__ = ["SmoothLogUniform"]


def _erf_ratio(z: Tensor) -> Tensor:
    """Return erf(z/√2)/z for z ≥ 0, by its series near zero."""
    y = z.clamp(max=0.1).square() / 2
    series = torch.ones_like(y) / 15
    for k in range(6, -1, -1):
        series = 1 / (2 * k + 1) - y / (k + 1) * series
    away = z.clamp(min=0.1)
    return torch.where(
        z < 0.1, math.sqrt(2 / math.pi) * series, torch.erf(away / math.sqrt(2)) / away
    )


def _scaled_tail(x: Tensor) -> Tensor:
    """Return exp(x²/2) Φ(−x) for x ≥ 0."""
    scaled: Tensor = torch.special.erfcx(x / math.sqrt(2))
    return 0.5 * scaled


class LogBounded(Expandable):
    """Base of distributions with bounds ``low < high`` of a logarithm."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }
    batched = ("low", "high")
    has_rsample = True

    def __init__(
        self, low: Tensor | float, high: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args and not bool((self.low < self.high).all()):
            raise ValueError(f"{type(self).__name__} needs low < high, the bounds of a logarithm.")


class SmoothLogUniform(LogBounded):
    r"""Scale mixture w = e^u n of normals n ~ N(0, 1) with a uniform log-scale u on [a, b].

    .. math:: p(w) = \frac{Φ(|w| e^{-a}) - Φ(|w| e^{-b})}{(b - a)\,|w|}, \quad
        p(0) = φ(0) \frac{e^{-a} - e^{-b}}{b - a}

    Between e^a and e^b the density is close to 1/|w|; below it is flat and above it decays like a
    normal, so it is proper and the posterior exists. Use it where `LogUniform` cannot be used:
    NUTS, prior prediction, evidence. The relative error of the density is about 1e-16/(b − a).

    Parameters
    ----------
    low, high
        Bounds a < b of the logarithm of the scale.

    References
    ----------
    Louizos, Ullrich & Welling (2017), *Bayesian Compression for Deep Learning*, for the scale
    mixture.
    """

    support = constraints.real

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, finite on the whole line."""
        if self._validate_args:
            self._validate_sample(value)
        size, low, high = value.double().abs(), self.low.double(), self.high.double()
        fine, coarse = torch.exp(-low), torch.exp(-high)
        near = size * fine < 1
        # near zero: ½ [e^{-a} E(|w|e^{-a}) − e^{-b} E(|w|e^{-b})], E(z) = erf(z/√2)/z
        close = torch.where(near, size, 0.0)
        core = 0.5 * (fine * _erf_ratio(close * fine) - coarse * _erf_ratio(close * coarse))
        # elsewhere: a difference of upper tails, the Gaussian factor of the larger one taken out
        away = torch.where(near, torch.exp(low), size)
        lower, upper = away * coarse, away * fine
        decay = torch.exp(-0.5 * (upper - lower) * (upper + lower))
        scaled = _scaled_tail(lower) - decay * _scaled_tail(upper)
        tails = scaled.log() - 0.5 * lower * lower - away.log()
        density = torch.where(near, core.log(), tails) - (high - low).log()
        return density.to(value.dtype)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through the bounds."""
        shape = self._extended_shape(torch.Size(sample_shape))
        u = torch.rand(shape, dtype=self.low.dtype, device=self.low.device)
        scale = torch.exp(self.low + u * (self.high - self.low))
        return scale * torch.randn(shape, dtype=self.low.dtype, device=self.low.device)

    @property
    def mean(self) -> Tensor:
        """Zero, by symmetry."""
        return torch.zeros_like(self.low)

    @property
    def variance(self) -> Tensor:
        """Mean squared scale (e^{2b} − e^{2a})/(2 (b − a))."""
        twice = 2 * (self.high - self.low)
        return torch.exp(2 * self.high) * -torch.expm1(-twice) / twice
