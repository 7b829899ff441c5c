"""A Normal that is stored by its log standard deviation, as the guides store it."""

from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Normal, constraints

from guides.distribution_base import analytic_kl
from guides.layout import standard_normal_like


class LogScaleNormal(dist.Normal):
    r"""Normal distribution with parameters :math:`\mu` and :math:`\log\sigma`.

    The same distribution as ``Normal(loc, log_scale.exp())``. Knowing the logarithm saves taking it
    in the divergence, and the variance is one exponential instead of an exponential and a square.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "loc": constraints.real,
        "log_scale": constraints.real,
    }

    def __init__(
        self, loc: Tensor, log_scale: Tensor, *, validate_args: bool | None = None
    ) -> None:
        self.loc, self.log_scale = torch.broadcast_tensors(loc, log_scale)
        self._scale: Tensor | None = None
        self._variance: Tensor | None = None
        # Normal.__init__ would store a scale; everything below it is what is needed.
        torch.distributions.Distribution.__init__(self, self.loc.shape, validate_args=validate_args)

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        """Standard deviation; kept, because draws and the divergence both need it."""
        if self._scale is None:
            self._scale = self.log_scale.exp()
        return self._scale

    @property
    def variance(self) -> Tensor:
        """Variance; kept, because a layer and the divergence both need it."""
        if self._variance is None:
            known = self._scale
            self._variance = (2 * self.log_scale).exp() if known is None else known * known
        return self._variance

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through both parameters."""
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = standard_normal_like(self.loc.expand(shape))
        return torch.addcmul(self.loc, self.scale, noise)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "LogScaleNormal":
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return LogScaleNormal(
            self.loc.expand(shape), self.log_scale.expand(shape), validate_args=False
        )


@analytic_kl(LogScaleNormal, Normal)
def _kl_log_scale_normal(q: LogScaleNormal, p: Normal) -> Tensor:
    loc, scale = _one_number(p.loc), _one_number(p.scale)
    square = q.variance + (q.loc - loc).square()
    kl: Tensor = 0.5 * (square * scale.pow(-2) - 1) - q.log_scale + scale.log()
    return kl


def _one_number(value: Tensor) -> Tensor:
    """Return a number that was expanded to a shape as the number it is."""
    if value.dim() and all(
        s == 0 or n == 1 for s, n in zip(value.stride(), value.shape, strict=True)
    ):
        return value[(0,) * value.dim()]
    return value


def summed_kl(q: Any, p: Any) -> Tensor | None:
    """Return the divergence summed over all elements, in few passes over memory.

    For independent `LogScaleNormal` elements and one Normal prior for all of them, the case that
    makes up most of a Bayesian network; None for any other pair.
    """
    while isinstance(q, torch.distributions.Independent):
        q = q.base_dist
    while isinstance(p, torch.distributions.Independent):
        p = p.base_dist
    if type(q) is not LogScaleNormal or type(p) is not dist.Normal:
        return None
    loc, scale = _one_number(p.loc), _one_number(p.scale)
    if loc.dim() or scale.dim():
        return None
    total: Tensor = _SummedKL.apply(q.loc, q.log_scale, q.variance, loc, scale)
    return total


class _SummedKL(torch.autograd.Function):
    """Sum of KL(N(m, v) || N(m0, s0^2)) over elements, with m0 and s0 numbers.

    Small layers spend their time on the number of operations, large ones on passes over memory;
    both are few here. Only the differences from the mean are kept for the gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, m: Tensor, log_scale: Tensor, v: Tensor, m0: Tensor, s0: Tensor
    ) -> Tensor:
        count, precision, difference = m.numel(), s0.pow(-2), m - m0
        flat = difference.reshape(-1)
        square = torch.dot(flat, flat) + v.sum()
        ctx.save_for_backward(difference, s0, precision, square)
        constant = (s0.log() - 0.5) * count
        return torch.addcmul(constant - log_scale.sum(), square, precision, value=0.5)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        difference, s0, precision, square = ctx.saved_tensors
        g = grads[0]
        weight = g * precision
        by_m = difference * weight
        by_v = (0.5 * weight).expand_as(difference)
        by_m0 = by_s0 = None
        if ctx.needs_input_grad[3] or ctx.needs_input_grad[4]:  # the prior has a prior
            by_m0 = -by_m.sum()
            by_s0 = g * (difference.numel() / s0 - square * precision / s0)
        return by_m, (-g).expand_as(difference), by_v, by_m0, by_s0
