"""Samples that are drawn when they are needed: local reparameterization as an effect handler.

A linear map of independent Gaussian weights has Gaussian outputs. Sampling those instead of the
weights gives every row its own noise, and gradients of lower variance (Kingma, Salimans and
Welling, 2015). Under `LocalReparameterization` a Normal site of a guide has a *lazy* value: a
tensor with shape, dtype and device, but no storage. ``linear`` and ``conv`` on it sample their
output; a product with a tensor stays lazy or, with a batch of rows, is drawn row by row; any other
operation draws the value once.

Without the handler nothing changes, so traces, replay, `Predictive` and NUTS see ordinary tensors.
The outputs of a convolution at different positions share weights and are correlated; sampling them
independently keeps every marginal and drops the correlations, as is common in training.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pyro.poutine.messenger import Messenger
from torch import Tensor

from guides.layout import channels_last, standard_normal_like
from guides.private_torch import call_on_plain_tensors

#: Keeps the square root of a variance differentiable at zero.
TINY = 1e-16

#: Key of a site's ``infer`` dictionary; False draws it as usual.
OPTION = "local_reparameterization"


class LazyReuseError(RuntimeError):
    """A sample that was already integrated out is needed again."""


class LocalReparameterization(Messenger):
    """Effect handler for a guide: independent Normal sites get lazy values.

    A site opts out with ``infer={"local_reparameterization": False}``.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"] or msg["done"] or not msg["infer"].get(OPTION, True):
            return
        base = msg["fn"]
        while isinstance(base, torch.distributions.Independent):
            base = base.base_dist
        is_event = msg["fn"].event_dim > 0 and not msg["fn"].batch_shape
        if is_event and isinstance(base, torch.distributions.Normal):
            msg["value"], msg["done"] = LazySample(base, msg["name"]), True


class LazySample(Tensor):
    """A draw from independent Normals that has not been made yet.

    ``parent`` and ``factor`` are those of a product of a lazy sample and a tensor.
    """

    @staticmethod
    def __new__(  # noqa: D102
        cls, normal: torch.distributions.Normal, *args: Any
    ) -> "LazySample":
        loc = normal.loc
        made: LazySample = Tensor._make_wrapper_subclass(
            cls, loc.shape, dtype=loc.dtype, device=loc.device
        )
        return made

    def __init__(
        self,
        normal: torch.distributions.Normal,
        name: str,
        parent: "LazySample | None" = None,
        factor: Tensor | None = None,
    ) -> None:
        self.normal, self.name_, self.parent, self.factor = normal, name, parent, factor
        self.drawn: Tensor | None = None
        self.used_by: str | None = None

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        if self.parent is None:
            return self.normal.loc, self.normal.variance
        assert self.factor is not None
        loc, variance = self.parent.moments()
        return loc * self.factor, variance * self.factor.square()

    @property
    def is_fresh(self) -> bool:
        """Whether it can still be integrated out."""
        return self.drawn is None and (self.parent is None or self.parent.is_fresh)

    def draw(self) -> Tensor:
        """Draw the value, once; later calls return the same."""
        if self.used_by is not None:
            raise LazyReuseError(
                f"the sample {self.name_!r} was integrated out by {self.used_by!r} and is used a "
                "second time, which needs the same draw. Sample weights instead of activations, or "
                f"give the site infer={{{OPTION!r}: False}}."
            )
        if self.drawn is None:
            if self.parent is None:
                self.drawn = self.normal.rsample()
            else:
                assert self.factor is not None
                self.drawn = self.parent.draw() * self.factor
        return self.drawn

    def draw_rows(self, num_rows: int) -> Tensor:
        """Draw for each row of a batch, rows in front; return the value if it is drawn already."""
        if not self.is_fresh:
            return self.draw()
        self.consume("draws for each row")
        loc, variance = self.moments()
        return _sampled(loc.expand(num_rows, *loc.shape), variance.expand(num_rows, *loc.shape))

    def consume(self, operation: str) -> None:
        """Record that an operation has integrated the sample out."""
        if self.used_by is not None:
            self.draw()  # raises
        self.used_by = operation
        if self.parent is not None:
            self.parent.consume(operation)

    def value_for_density(self) -> Tensor:
        """Return a draw for log p - log q; for each site an independent one is unbiased."""
        return self.drawn if self.drawn is not None else self.normal.rsample()

    def __repr__(self, **keywords: Any) -> str:  # type: ignore[override]
        state = "drawn" if self.drawn is not None else f"used by {self.used_by}"
        return f"LazySample({self.name_!r}, {tuple(self.shape)}, {state})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in _METADATA:
            return call_on_plain_tensors(cls, func, types, args, kwargs)
        return func(*_drawn(args), **_drawn(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Draw in operations that ``__torch_function__`` does not see."""
        return func(*_drawn(args), **_drawn(kwargs or {}))


def _drawn(value: Any) -> Any:
    """Draw the lazy samples among the arguments of an operation."""
    if isinstance(value, LazySample):
        return value.draw()
    if type(value) in (tuple, list):
        return type(value)(map(_drawn, value))
    if type(value) is dict:
        return {name: _drawn(item) for name, item in value.items()}
    return value


def is_lazy(value: object) -> bool:
    """Return whether a value is a lazy sample."""
    return isinstance(value, LazySample)


class _SampledOutput(torch.autograd.Function):
    """A draw with given mean and variance, from given noise.

    Keeps one tensor of the output's size; autograd on the composed operations would keep the
    variance, its root and the noise, and pass over memory more often.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        scale = variance.clamp_min(TINY).sqrt_()
        ctx.save_for_backward(noise.mul(0.5).div_(scale))
        return torch.addcmul(mean, scale, noise)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (half_noise_over_scale,) = ctx.saved_tensors
        return grads[0], grads[0] * half_noise_over_scale, None


def _sampled(mean: Tensor, variance: Tensor) -> Tensor:
    output: Tensor = _SampledOutput.apply(mean, variance, standard_normal_like(mean))
    return output


def _linear_map(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the rule of a function that is linear in weight and bias, and in its input."""

    def rule(input: Tensor, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not is_lazy(weight) or not weight.is_fresh or is_lazy(input):
            return NotImplemented
        weight.consume(function.__name__)
        bias_loc, bias_variance = bias, None
        if is_lazy(bias) and bias.is_fresh:
            bias.consume(function.__name__)
            bias_loc, bias_variance = bias.moments()
        elif is_lazy(bias):
            bias_loc = bias.draw()
        loc, variance = weight.moments()
        mean = function(input, channels_last(loc), bias_loc, *args, **kwargs)
        spread = function(input * input, channels_last(variance), bias_variance, *args, **kwargs)
        return _sampled(mean, spread)

    return rule


def _multiply(left: Any, right: Any) -> Any:
    """Multiply by a tensor: the product is lazy again, or one draw per row of a batch."""
    lazy, other = (left, right) if is_lazy(left) else (right, left)
    if not lazy.is_fresh or is_lazy(other) or not isinstance(other, Tensor):
        return NotImplemented
    if torch.broadcast_shapes(lazy.shape, other.shape) == lazy.shape:
        return LazySample(lazy.normal, lazy.name_, lazy, other)
    if other.dim() <= lazy.dim():
        return NotImplemented
    lazy.consume("mul")
    loc, variance = lazy.moments()
    rows = torch.broadcast_shapes(other.shape, lazy.shape)
    return other * _sampled(loc.expand(rows), variance.expand(rows))


_RULES: dict[Any, Callable[..., Any]] = {
    function: _linear_map(function)
    for function in (F.linear, torch.conv1d, torch.conv2d, torch.conv3d)
}
_RULES |= {
    torch.mul: _multiply,
    Tensor.mul: _multiply,
    Tensor.__mul__: _multiply,
    Tensor.__rmul__: _multiply,
}

#: Properties of a sample that are known without a draw.
_METADATA: set[Any] = {
    Tensor.size,
    Tensor.dim,
    Tensor.ndimension,
    Tensor.numel,
    Tensor.nelement,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.element_size,
    Tensor.__hash__,
    Tensor.__len__,
    torch.numel,
    torch.is_floating_point,
}
_PROPERTIES = (
    "shape ndim dtype device layout requires_grad is_cuda is_sparse is_meta is_leaf is_quantized "
    "is_nested"
)
_METADATA |= {getattr(Tensor, name).__get__ for name in _PROPERTIES.split()}
