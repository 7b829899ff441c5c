"""Variational families that torch lacks, and the divergences they and `LogNormal` need.

The truncated families are those of structured Bayesian pruning (Neklyudov, Molchanov, Ashukha &
Vetrov, *Structured Bayesian Pruning via Log-Normal Multiplicative Noise*, NIPS 2017). Their
numerics are in `guides.truncation`.

Importing the module registers the divergences on the *torch* classes; Pyro's inherit from them.
"""

import math
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Gamma, HalfNormal, InverseGamma, LogNormal, Uniform, constraints
from torch.distributions.utils import broadcast_all

from guides.distribution_base import Expandable, analytic_kl
from guides.truncation import (
    ImplicitDraw,
    Window,
    log_kernel_at,
    quantile_and_derivatives,
    window_of,
)

__all__ = ["TruncatedLogNormal", "TruncatedNormal", "kl_truncated_uniform"]

_TINY = torch.finfo(torch.float64).tiny

_Real = Tensor | float
_Flag = bool | None


class _Truncated(Expandable):
    """Parameters and window shared by the truncated normal and its exponential."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }
    batched = ("loc", "scale", "low", "high")
    has_rsample = True

    def __init__(
        self, loc: _Real, scale: _Real, low: _Real, high: _Real, *, validate_args: _Flag = None
    ) -> None:
        self.loc, self.scale, self.low, self.high = broadcast_all(loc, scale, low, high)
        # what integrals are computed from: stays small when a plate expands the distribution
        self._core = (self.loc, self.scale, self.low, self.high)
        super().__init__(self.loc.shape, validate_args=validate_args)
        finite = torch.isfinite(self.low) & torch.isfinite(self.high)
        if self._validate_args and not bool((finite & (self.low < self.high)).all()):
            raise ValueError(
                f"The bounds of {type(self).__name__} must be finite with low < high. "
                f"Got low={_show(self.low)}, high={_show(self.high)}."
            )

    def _double(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        loc, scale, low, high = self._core
        return loc.double(), scale.double(), low.double(), high.double()

    def _window(self) -> Window:
        return window_of(*self._double())

    def _shaped(self, value: Tensor) -> Tensor:
        return value.to(self.loc.dtype).expand(self.batch_shape)

    def _quantile(self, u: Tensor) -> Tensor:
        u = u.double().expand(np.broadcast_shapes(u.shape, self.batch_shape))
        parameters = [parameter.expand_as(u) for parameter in self._double()]
        return cast(
            Tensor, ImplicitDraw.apply(*quantile_and_derivatives(u, *parameters), *parameters)
        )

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through all parameters."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.icdf(torch.rand(shape, dtype=torch.float64, device=self.loc.device))

    def _log_prob(self, value: Tensor) -> Tensor:
        window, scale = self._window(), self._double()[1]
        density = log_kernel_at(value, window, scale) - window.log_mass
        return torch.where((value >= self.low) & (value <= self.high), density, -math.inf)

    def _cdf(self, value: Tensor) -> Tensor:
        loc, scale, low, high = self._double()
        # an empty window has no logarithm: integrate up to high where value <= low
        upper = torch.where(value > low, torch.minimum(value, high), high)
        window, part = self._window(), window_of(loc, scale, low, upper)
        height = log_kernel_at(part.anchor, window, scale)
        share = (part.log_mass + height - window.log_mass).clamp(max=0.0).exp()
        return torch.where(value > self.low, share, 0.0)


class TruncatedNormal(_Truncated):
    r"""Normal distribution restricted to an interval.

    .. math:: q(t) = \frac{φ((t - μ)/σ)}{σ\,[Φ((b - μ)/σ) - Φ((a - μ)/σ)]}, \quad a ≤ t ≤ b

    Draws come from the inverse cdf and carry exact implicit-reparameterisation gradients with
    respect to all four parameters. `loc` may lie far outside the window.

    Parameters
    ----------
    loc, scale
        Mean and standard deviation before truncation.
    low, high
        Finite bounds a < b.
    """

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Return the closed interval [low, high]."""
        return constraints.interval(self.low, self.high)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, −∞ outside the window."""
        if self._validate_args:
            self._validate_sample(value)
        return self._log_prob(value.double()).to(self.loc.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a draw below `value`."""
        if self._validate_args:
            self._validate_sample(value)
        return self._cdf(value.double()).to(self.loc.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile at the probability `value`."""
        return self._quantile(value).to(self.loc.dtype)

    @property
    def mean(self) -> Tensor:
        """Expected value."""
        window = self._window()
        return self._shaped(window.anchor + window.expect(window.offset))

    @property
    def variance(self) -> Tensor:
        """Variance."""
        window = self._window()
        centred = window.offset - window.expect(window.offset).unsqueeze(-1)
        return self._shaped(window.expect(centred * centred))


class ExpWindow:
    """A distribution on [exp(low), exp(high)]."""

    low: Tensor
    high: Tensor

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Return the closed interval [exp(low), exp(high)]."""
        return constraints.interval(*self._bounds())

    def _bounds(self) -> tuple[Tensor, Tensor]:
        low, high = self.low.double().exp(), self.high.double().exp()
        return low.to(self.low.dtype), high.to(self.low.dtype)


class TruncatedLogNormal(ExpWindow, _Truncated):
    r"""θ = exp(t) with t a truncated normal: multiplicative noise of structured Bayesian pruning.

    .. math:: q(θ) = \frac{1}{θ}\,\mathrm{TruncatedNormal}(\log θ \mid μ, σ, a, b),
        \quad e^a ≤ θ ≤ e^b
    .. math:: E\,θ^k = e^{kμ + k²σ²/2}\,
        \frac{Φ(β - kσ) - Φ(α - kσ)}{Φ(β) - Φ(α)}, \quad α = (a-μ)/σ,\ β = (b-μ)/σ

    Parameters
    ----------
    loc, scale
        Mean and standard deviation of log θ before truncation.
    low, high
        Bounds a < b of **log θ**; the published choice is −20 and 0.
    """

    def _log(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return log θ, moved into the window against rounding, and whether θ was inside."""
        if self._validate_args:
            self._validate_sample(value)
        low, high = self._bounds()
        inside = (value >= low) & (value <= high)
        log_value = torch.where(inside, value, high).double().log()
        return torch.minimum(torch.maximum(log_value, self.low), self.high), inside

    def _exp(self, log_value: Tensor) -> Tensor:
        low, high = self._bounds()
        return torch.minimum(torch.maximum(log_value.exp().to(self.loc.dtype), low), high)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of θ, −∞ outside the window."""
        log_value, inside = self._log(value)
        density = self._log_prob(log_value) - log_value
        return torch.where(inside, density, -math.inf).to(self.loc.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a draw below `value`."""
        log_value, inside = self._log(value)
        above = (value >= self._bounds()[1]).double()
        return torch.where(inside, self._cdf(log_value), above).to(self.loc.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile at the probability `value`."""
        return self._exp(self._quantile(value))

    def _log_moment(self, k: int, window: Window) -> Tensor:
        """Return log E θ^k; tilting by e^{kt} only moves loc to loc + k scale²."""
        loc, scale, low, high = self._double()
        tilted = window_of(loc + k * scale * scale, scale, low, high)
        height = log_kernel_at(tilted.anchor, window, scale)
        return k * tilted.anchor + height + tilted.log_mass - window.log_mass

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return log E θ and log(Var θ / (E θ)²)."""
        window = self._window()
        first = self._log_moment(1, window)
        gap = self._log_moment(2, window) - 2 * first
        # For a narrow posterior the gap of the log moments has no digits left: sum the squared
        # deviations instead. The clamp concerns only elements for which the sum is not used.
        growth = torch.expm1(window.offset.clamp(max=50.0))
        mean = window.expect(growth)
        deviation = (growth - mean.unsqueeze(-1)) / (1 + mean).unsqueeze(-1)
        narrow = window.expect(deviation.square()).clamp(min=_TINY)
        wide = torch.where(gap > 0.1, gap, 1.0)
        log_wide = wide + torch.log(-torch.expm1(-wide))
        return first, torch.where(gap > 0.1, log_wide, narrow.log())

    @property
    def mean(self) -> Tensor:
        """E θ, the multiplier used at test time."""
        return self._shaped(self._log_moment(1, self._window()).exp())

    @property
    def second_moment(self) -> Tensor:
        """E θ²."""
        return self._shaped(self._log_moment(2, self._window()).exp())

    @property
    def variance(self) -> Tensor:
        """Variance of θ."""
        first, log_ratio = self._moments()
        return self._shaped((2 * first + log_ratio).exp())

    @property
    def log_snr(self) -> Tensor:
        """Logarithm of the signal-to-noise ratio E θ / √Var θ; units are kept above 0."""
        return self._shaped(-0.5 * self._moments()[1])

    @property
    def snr(self) -> Tensor:
        """Signal-to-noise ratio E θ / √Var θ; units are kept above 1."""
        return self._shaped((-0.5 * self._moments()[1]).exp())


def _show(bound: Tensor) -> str:
    flat = bound.detach().reshape(-1)
    return f"{flat.min():g}" if flat.min() == flat.max() else f"{flat.min():g}..{flat.max():g}"


def kl_truncated_uniform(
    guide: TruncatedNormal | TruncatedLogNormal, low: Tensor, high: Tensor
) -> Tensor:
    r"""Divergence of a truncated normal from the uniform distribution on the same window.

    .. math:: KL = \log(b-a) - \log(σZ) - ½\log(2πe) - \frac{αφ(α) - βφ(β)}{2Z},
        \quad Z = Φ(β) - Φ(α)

    It is the same for exp(t) against the log-uniform distribution on [e^a, e^b]. Bounds that
    differ from those of the guide raise `ValueError`; they are compared only when the guide
    validates its arguments, because that reads tensor values.
    """
    if guide._validate_args:
        near = 8 * torch.finfo(guide.loc.dtype).eps
        same = torch.isclose(guide.low.double(), low.double(), rtol=near, atol=near)
        same = same & torch.isclose(guide.high.double(), high.double(), rtol=near, atol=near)
        if not bool(same.all()):
            raise ValueError(
                f"KL({type(guide).__name__} || uniform prior) needs equal bounds. "
                f"The guide has low={_show(guide.low)}, high={_show(guide.high)}; "
                f"the prior has low={_show(low)}, high={_show(high)}."
            )
    window, (_, _, lower, upper) = guide._window(), guide._double()
    shape = np.broadcast_shapes(guide.batch_shape, low.shape)
    covered = (window.length / (upper - lower)).log() + window.total.log()
    return (window.expect(window.log_kernel) - covered).to(guide.loc.dtype).expand(shape)


@analytic_kl(TruncatedNormal, Uniform)
def _kl_truncated_normal_uniform(p: TruncatedNormal, q: Uniform) -> Tensor:
    return kl_truncated_uniform(p, q.low, q.high)


def _kl_log_gamma(loc: Tensor, scale: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    scaled = loc + rate.log()
    mean = (scaled + 0.5 * scale.square()).exp()
    log_entropy = scale.log() + 0.5 * math.log(2 * math.pi * math.e)
    return mean - shape * scaled + torch.lgamma(shape) - log_entropy


@analytic_kl(LogNormal, Gamma)
def _kl_log_normal_gamma(p: LogNormal, q: Gamma) -> Tensor:
    """KL = −c (μ + log r) + log Γ(c) + r exp(μ + σ²/2) − ½ log(2πeσ²), shape c and rate r."""
    return _kl_log_gamma(p.loc, p.scale, q.concentration, q.rate)


@analytic_kl(LogNormal, InverseGamma)
def _kl_log_normal_inverse_gamma(p: LogNormal, q: InverseGamma) -> Tensor:
    """KL = c (μ − log b) + log Γ(c) + b exp(−μ + σ²/2) − ½ log(2πeσ²); torch calls b `rate`."""
    return _kl_log_gamma(-p.loc, p.scale, q.concentration, q.rate)


@analytic_kl(LogNormal, HalfNormal)
def _kl_log_normal_half_normal(p: LogNormal, q: HalfNormal) -> Tensor:
    """KL = ½ exp(2μ + 2σ²)/s² + log s − μ − log σ − log 2 − ½, s the scale of the prior."""
    scaled = p.loc - q.scale.log()
    second_moment = (2 * (scaled + p.scale.square())).exp()
    return 0.5 * second_moment - scaled - p.scale.log() - (math.log(2) + 0.5)
