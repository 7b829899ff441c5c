"""Primitives of graph networks by name: ``linear(16)``, ``conv(8, kernel=3)``, ``max_pool``, ...

A primitive is written as text, or as a list of texts for a sequence of steps, and is built for the
shape of its input. Text is parsed, never evaluated (`zoo.parsing.calls`).
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import ConfigError, unknown_name
from zoo.network.nets.architectures import ACTIVATIONS, Powers
from zoo.parsing.calls import Argument, bind, parse_call, short

#: Largest argument of a primitive: units, channels or kernel size.
MAX_SIZE = 10_000


class Zero(nn.Module):
    """Zeros for any input, that is, no connection; ``shape`` is that of one row of the output."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return a zero for each row."""
        return x.new_zeros(len(x), *self.shape)


class Constant(Zero):
    """The same learned constants for every row, one per unit or channel."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(shape)
        self.value = nn.Parameter(torch.zeros(self.shape[0], *(1 for _ in self.shape[1:])))

    def forward(self, x: Tensor) -> Tensor:
        """Return the constants for each row."""
        return self.value.expand(len(x), *self.shape)


@dataclass(frozen=True)
class Context:
    """The context of a primitive: the shape of one input row, and the value of ``outputs``."""

    shape: tuple[int, ...]
    num_outputs: int

    def channels(self, wanted: int) -> tuple[int, int]:
        """Return the numbers of input and output channels; zero keeps the number of inputs."""
        if len(self.shape) != 3:
            raise ConfigError(f"it needs images, but gets rows of shape {self.shape}")
        return self.shape[0], wanted or self.shape[0]


def _linear(context: Context, units: int) -> nn.Module:
    if len(context.shape) != 1:
        raise ConfigError(f"it needs flat rows, but gets {context.shape}: add flatten before it")
    return nn.Linear(context.shape[0], units)


def _conv(
    context: Context, channels: int = 0, kernel: int = 3, stride: int = 1, dilation: int = 1
) -> nn.Module:
    entering, leaving = context.channels(channels)
    return nn.Conv2d(entering, leaving, kernel, stride, _padding(kernel, dilation), dilation)


def _separable(
    context: Context, channels: int = 0, kernel: int = 3, stride: int = 1, dilation: int = 1
) -> nn.Module:
    """Return a depthwise convolution followed by a pointwise one."""
    entering, leaving = context.channels(channels)
    padding = _padding(kernel, dilation)
    depthwise = nn.Conv2d(
        entering, entering, kernel, stride, padding, dilation, groups=entering, bias=False
    )
    return nn.Sequential(depthwise, nn.Conv2d(entering, leaving, 1))


# Pooling with an odd kernel keeps the size; an even one has no padding and reduces it.


def _max_pool(context: Context, kernel: int = 3, stride: int = 1) -> nn.Module:
    context.channels(0)
    return nn.MaxPool2d(kernel, stride, kernel // 2 * (kernel % 2))


def _avg_pool(context: Context, kernel: int = 3, stride: int = 1) -> nn.Module:
    context.channels(0)
    return nn.AvgPool2d(kernel, stride, kernel // 2 * (kernel % 2), count_include_pad=False)


def _average(context: Context) -> nn.Module:
    """Return the average over all positions, one number per channel."""
    context.channels(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _powers(context: Context, degree: int) -> nn.Module:
    return Powers(degree)


def _padding(kernel: int, dilation: int) -> int:
    """Return the padding that keeps the size of an image."""
    if kernel % 2 == 0:
        raise ConfigError(f"its kernel size must be odd, but is {kernel}")
    return dilation * (kernel // 2)


#: Builders of primitives. The last two use the shape of the other primitives of their edge.
PRIMITIVES: dict[str, Callable[..., nn.Module]] = {
    "linear": _linear,
    "conv": _conv,
    "separable": _separable,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "average": _average,
    "powers": _powers,
    "flatten": lambda context: nn.Flatten(),
    "identity": lambda context: nn.Identity(),
    **{name: lambda context, cls=cls: cls() for name, cls in ACTIVATIONS.items()},
    "zero": lambda context: Zero(context.shape),
    "constant": lambda context: Constant(context.shape),
}
SHAPELESS = ("zero", "constant")


def build_primitive(source: Any, context: Context, edge: str) -> nn.Module:
    """Build a primitive of an edge from text or from a list of texts.

    ``context`` describes its input; for ``zero`` and ``constant``, its output.
    """
    steps = source if isinstance(source, list | tuple) else [source]
    if not steps:
        raise ConfigError(f"a primitive of edge {edge!r} is empty. Write it like linear(16).")
    modules = []
    for step in steps:
        module = _build_step(step, context, edge)
        context = Context(
            output_shape(module, context.shape, f"{step!r} of edge {edge!r}"), context.num_outputs
        )
        modules.append(module)
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


def _build_step(step: Any, context: Context, edge: str) -> nn.Module:
    if not isinstance(step, str):
        raise ConfigError(
            f"a primitive of edge {edge!r} is text like linear(16), or a list of such texts. "
            f"Got {short(step)}."
        )
    call = parse_call(step, what="primitive", example="linear(16)", error=ConfigError)
    if call.name not in PRIMITIVES:
        raise unknown_name(f"primitive of edge {edge!r}", call.name, PRIMITIVES)
    builder = PRIMITIVES[call.name]
    parameters = {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(builder).parameters.items()
        if name not in ("context", "cls")
    }
    given = bind(
        f"the primitive {call.name!r}",
        list(parameters),
        call.positional,
        dict(call.keywords),
        required=[name for name, is_required in parameters.items() if is_required],
        error=ConfigError,
    )
    arguments = {name: _size(value, name, call.name, context) for name, value in given.items()}
    try:
        return builder(context, **arguments)
    except (ConfigError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the primitive {short(step)} of edge {edge!r} cannot be built: {error}."
        ) from None


def _size(value: Argument, name: str, primitive: str, context: Context) -> int:
    if value == "outputs":
        return context.num_outputs
    if not isinstance(value, float) or not value.is_integer() or not 1 <= value <= MAX_SIZE:
        raise ConfigError(
            f"{name!r} of the primitive {primitive!r} must be a whole number from 1 to {MAX_SIZE}, "
            f"or the word outputs. Got {short(value)}."
        )
    return int(value)


@torch.no_grad()
def output_shape(module: nn.Module, shape: Sequence[int], what: str) -> tuple[int, ...]:
    """Return the shape of one output row of a module for input rows of a shape."""
    try:
        return tuple(module.eval()(torch.zeros(2, *shape)).shape[1:])
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{what} does not accept rows of shape {tuple(shape)}: {str(error).splitlines()[0]}"
        ) from None
    finally:
        module.train()
