"""Slots for multiplicative noise on the inputs and outputs of layers.

The slot ``2.input`` holds one multiplier for each input unit of module ``2`` (each channel of a
convolution); ``2.output`` is the same for its outputs. They have no effect without a prior::

    zoo fit mean_field --data digits --prior '*.input=LogNormal(0, 0.1)'

Globs match linear and convolutional layers only. Any other module is matched by its full name:
``encoder.norm.output``.

A draw of the model holds for all rows. Where training samples layers instead of weights
(`guides.lazy`), each row has its own draw.

The multipliers are a buffer of the module and are applied by a hook, both on the model's copy of
the network, so that they are replaced like a parameter when the network is called.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from guides.lazy import LazySample
from zoo.errors import ConfigError
from zoo.network.slots import Slot

Side = Literal["input", "output"]
SIDES: tuple[Side, ...] = ("input", "output")


def activation_slots(net: nn.Module) -> list[Slot]:
    """List the slots for multipliers; a module with an attribute ``input`` has no such slot."""
    like = next(net.parameters(), torch.empty(())).detach()
    slots = []
    for name, module in net.named_modules():
        for side in SIDES:
            if not hasattr(module, side):
                ones = like.new_ones(_num_units(module, side))
                slot = Slot(
                    f"{name}.{side}" if name else side,
                    ones,
                    "activation",
                    by_name=not isinstance(module, nn.Linear | nn.modules.conv._ConvNd),
                    install=partial(_install, name, side, ones),
                )
                slots.append(slot)
    return slots


def _num_units(module: nn.Module, side: Side) -> int:
    """Return the number of inputs or outputs of a layer, or one for all if it is not known."""
    if isinstance(module, nn.Linear):
        return module.in_features if side == "input" else module.out_features
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.in_channels if side == "input" else module.out_channels
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return module.num_features
    return 1


def _install(name: str, side: Side, ones: Tensor, net: nn.Module) -> None:
    """Add the multipliers of a module, and the hook that applies them."""
    module = net.get_submodule(name)
    # Draws replace it, so it is not part of the state.
    module.register_buffer(side, ones, persistent=False)
    if side == "input":
        module.register_forward_pre_hook(_multiply_input)
    else:
        module.register_forward_hook(_multiply_output)


def _multiply_input(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not args or not isinstance(args[0], Tensor):
        raise ConfigError(
            f"noise on the input of a {type(module).__name__} needs a tensor as its first "
            f"argument. Got {type(args[0]).__name__ if args else 'none'}."
        )
    return (_multiplied(module, args[0], module.input), *args[1:])


def _multiply_output(module: Any, args: tuple[Any, ...], output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"noise on the output of a {type(module).__name__} needs a tensor. It returns "
            f"{type(output).__name__}."
        )
    return _multiplied(module, output, module.output)


def _multiplied(module: nn.Module, x: Tensor, multipliers: Tensor) -> Tensor:
    """Multiply the units of all rows by the same numbers, or of each row by its own."""
    if isinstance(multipliers, LazySample):
        multipliers = multipliers.draw_rows(len(x))
    trailing = 0  # dimensions after that of the units: positions in an image, for example
    if isinstance(module, nn.modules.conv._ConvNd):
        trailing = len(module.kernel_size)
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        trailing = x.dim() - 2
    *front, num_units = multipliers.shape
    between = max(0, x.dim() - len(front) - 1 - trailing)
    shape = (*front, *(1,) * between, num_units, *(1,) * trailing)
    return x * multipliers.reshape(shape).to(x.dtype)


def silent_slots(net: nn.Module, names: Iterable[str], x: Tensor) -> list[str]:
    """Return the slots whose module is not called, so that noise would have no effect.

    Attention, for example, reads the parameters of its output projection without calling it.
    """
    called: set[nn.Module] = set()
    modules = {name: net.get_submodule(name.rpartition(".")[0]) for name in names}
    hooks = [
        module.register_forward_hook(lambda module, args, output: called.add(module))
        for module in set(modules.values())
    ]
    try:
        with torch.no_grad():
            net(x)
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name, module in modules.items() if module not in called]
