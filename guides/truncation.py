"""Truncated normals: integrals and quantiles that are stable wherever the mean lies.

The textbook formulas subtract numbers near exp(-β²/2) and lose every digit as soon as the mean
leaves the interval. Integrals are therefore taken relative to the highest point of the density
inside it (`Window`), and quantiles relative to the nearest bound, in float64 throughout.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The density is integrated down to exp(-38) of its peak, below the resolution of float64. Over
# that range (at most ±8.8 standard deviations) 48 Gauss-Legendre nodes are exact to rounding.
_DEPTH = 38.0
_roots, _masses = np.polynomial.legendre.leggauss(48)
_NODES, _WEIGHTS = 0.5 * (_roots + 1.0), 0.5 * _masses
_SMALLEST_U = 2.0**-60


class Window(NamedTuple):
    """Quadrature of exp(log_kernel) over the part of [low, high] that carries mass.

    With c the highest point of the density inside the window, log_kernel(d) is
    log N(c + d | loc, scale) − log N(c | loc, scale) = −d (d + 2 (c − loc)) / (2 scale²).
    """

    anchor: Tensor  # c, without gradient: it is only a reference point
    shift: Tensor  # c - loc
    length: Tensor  # of the integrated part
    offset: Tensor  # d at the nodes, last dimension
    log_kernel: Tensor  # at the nodes
    weight: Tensor  # node weight times kernel
    total: Tensor  # sum of weight

    @property
    def log_mass(self) -> Tensor:
        """Logarithm of the integral of exp(log_kernel) over the window."""
        return self.length.log() + self.total.log()

    def expect(self, at_nodes: Tensor) -> Tensor:
        """Return the expectation of a quantity given at the nodes."""
        return (self.weight * at_nodes).sum(-1) / self.total


def _constant(values: NDArray[np.floating], like: Tensor) -> Tensor:
    """Return numbers on the device of a tensor, without waiting for it."""
    return torch.as_tensor(values).to(like.device, non_blocking=True)


def window_of(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Window:
    """Return the quadrature of N(loc, scale²) over [low, high]."""
    anchor = torch.minimum(torch.maximum(loc, low), high).detach()
    shift = anchor - loc
    # where the kernel has fallen to exp(-_DEPTH): d²/2 + |shift| d = _DEPTH, in units of scale
    far = (shift / scale).detach().abs()
    reach = scale.detach() * (2 * _DEPTH / (far + (far * far + 2 * _DEPTH).sqrt()))
    left = torch.maximum(low - anchor, -reach)
    length = torch.minimum(high - anchor, reach) - left
    offset = left.unsqueeze(-1) + length.unsqueeze(-1) * _constant(_NODES, loc)
    width = scale.unsqueeze(-1)
    log_kernel = -0.5 * (offset / width) * ((offset + 2 * shift.unsqueeze(-1)) / width)
    weight = _constant(_WEIGHTS, loc) * log_kernel.exp()
    return Window(anchor, shift, length, offset, log_kernel, weight, weight.sum(-1))


def log_kernel_at(value: Tensor, window: Window, scale: Tensor) -> Tensor:
    """Return the log density at a value, relative to that at the window's anchor."""
    offset = value - window.anchor
    return -0.5 * (offset / scale) * ((offset + 2 * window.shift) / scale)


def _mills(x: Tensor) -> Tensor:
    """M(x) = Φ(x)/φ(x) for x ≤ 0."""
    ratio: Tensor = torch.special.erfcx(-x / math.sqrt(2))
    return math.sqrt(math.pi / 2) * ratio


def _mills_slope(x: Tensor, mills: Tensor) -> Tensor:
    """M'(x) = 1 + x M(x) for x ≤ 0, without the cancellation at large |x|."""
    y = x.clamp(max=-1.0).pow(-2)
    series = torch.ones_like(y)
    for k in (13, 11, 9, 7, 5, 3):
        series = 1 - k * y * series
    return torch.where(x < -30, y * series, 1 + x * mills)


class Draw(NamedTuple):
    """A quantile and its derivatives with respect to the four parameters."""

    value: Tensor
    by_loc: Tensor
    by_scale: Tensor
    by_low: Tensor
    by_high: Tensor


def _solve_interior(
    u: Tensor, loc: Tensor, scale: Tensor, alpha: Tensor, beta: Tensor, rest: Tensor
) -> Draw:
    """Invert the cdf when loc lies inside the window: α < 0 < β. `rest` is 1 − u."""
    root = math.sqrt(2)
    y = rest * torch.erf(alpha / root) + u * torch.erf(beta / root)
    below = rest * torch.special.ndtr(alpha) + u * torch.special.ndtr(beta)
    above = rest * torch.special.ndtr(-alpha) + u * torch.special.ndtr(-beta)
    tail = torch.where(y < 0, torch.special.ndtri(below), -torch.special.ndtri(above))
    x = torch.where(y.abs() < 0.9, root * torch.erfinv(y.clamp(-0.9, 0.9)), tail)
    x = torch.minimum(torch.maximum(x, alpha), beta)
    by_low = rest * (0.5 * (x - alpha) * (x + alpha)).exp()
    by_high = u * (0.5 * (x - beta) * (x + beta)).exp()
    by_loc = 1 - by_low - by_high
    by_scale = x - alpha * by_low - beta * by_high
    return Draw(loc + scale * x, by_loc, by_scale, by_low, by_high)


def _solve_tail(
    u: Tensor, high: Tensor, scale: Tensor, beta: Tensor, width: Tensor, rest: Tensor
) -> Draw:
    """Invert the cdf when loc ≥ high (β ≤ 0), measuring the draw from the upper bound.

    The draw is high − scale·s with log Φ(β − s) − log Φ(β) = −depth. Newton's method on this
    concave function approaches the root from one side and cannot overshoot. The derivatives are
    those of the implicit reparameterisation, with φ(x) = φ(x) M'(x) − x Φ(x) inserted so that
    the terms of order 1 cancel on paper.
    """
    mills_beta, mills_alpha = _mills(beta), _mills(beta - width)
    log_ratio = mills_alpha.log() - mills_beta.log() + width * (beta - 0.5 * width)
    share = u + rest * log_ratio.exp()
    depth = -torch.where(u < 0.5, share.log(), torch.log1p(rest * torch.expm1(log_ratio)))
    s = 2 * depth / ((beta * beta + 2 * depth).sqrt() - beta)
    for _ in range(5):
        s = torch.minimum(s.clamp(min=0.0), width)
        mills = _mills(beta - s)
        s = s + (mills.log() - mills_beta.log() + s * (beta - 0.5 * s) + depth) * mills
    s = torch.minimum(s.clamp(min=0.0), width)
    x, left = beta - s, width - s
    at_high = u * (s * (0.5 * s - beta)).exp()
    at_low = rest * (left * (beta - 0.5 * (s + width))).exp()
    by_loc = (
        _mills_slope(x, _mills(x))
        - at_high * (_mills_slope(beta, mills_beta) - s * mills_beta)
        - at_low * (_mills_slope(beta - width, mills_alpha) + left * mills_alpha)
    )
    by_scale = x * by_loc - at_high * s + at_low * left
    return Draw(high - scale * s, by_loc, by_scale, at_low, at_high)


@torch.no_grad()
def quantile_and_derivatives(
    u: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor
) -> Draw:
    """Quantile of a truncated normal and its derivatives, everywhere stable."""
    u, rest = u.clamp(min=_SMALLEST_U), (1 - u).clamp(min=_SMALLEST_U)
    alpha, beta, width = (low - loc) / scale, (high - loc) / scale, (high - low) / scale
    inside, reflect, where = (alpha < 0) & (beta > 0), alpha >= 0, torch.where
    # each branch sees harmless numbers where the other one applies
    lower, upper = where(inside, alpha, -1.0), where(inside, beta, 1.0)
    interior = _solve_interior(u, loc, scale, lower, upper, rest)
    edge, bound = where(reflect, -alpha, beta), where(reflect, -low, high)
    toward, away = where(reflect, rest, u), where(reflect, u, rest)
    tail = _solve_tail(toward, bound, scale, where(inside, -1.0, edge), width, away)
    sign = where(reflect, -1.0, 1.0).to(u.dtype)
    value = where(inside, interior.value, sign * tail.value)
    return Draw(
        torch.minimum(torch.maximum(value, low), high),
        where(inside, interior.by_loc, tail.by_loc),
        where(inside, interior.by_scale, sign * tail.by_scale),
        where(inside, interior.by_low, where(reflect, tail.by_high, tail.by_low)),
        where(inside, interior.by_high, where(reflect, tail.by_low, tail.by_high)),
    )


class ImplicitDraw(torch.autograd.Function):
    """Return a draw whose derivatives are already known (implicit reparameterisation)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Tensor) -> Tensor:
        """Return the value, the first of `value, 4 derivatives, 4 parameters`."""
        return inputs[0].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the derivatives."""
        ctx.save_for_backward(*inputs[1:5])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the incoming gradient by each derivative."""
        known = (grads[0] * derivative for derivative in ctx.saved_tensors)
        return (None,) * 5 + tuple(known)
