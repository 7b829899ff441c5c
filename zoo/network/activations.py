"""Slots at the inputs and outputs of layers: multiplicative noise on activations.

The slot ``2.input`` holds one number for each input unit of module ``2`` (each channel of a
convolution), and what enters the module is multiplied by them; ``2.output`` is the same for what
leaves it. Nothing happens at such a place until it is given a prior::

    zoo fit mean_field --data digits --prior '*.input=LogNormal(0, 0.1)'

Globs mean the linear and convolutional layers. Any other module has both places too, under their
full names: ``encoder.norm.output``.

A value that the model has drawn holds for all rows: one draw is one function of the input. Where
training samples layers instead of weights (`guides.lazy`), each row has a draw of its own.

The numbers are a buffer of the module and are applied by a hook, both on the model's copy of the
network. So they are replaced like a parameter when the network is called, whatever its class.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from guides.lazy import LazySample
from zoo.errors import ConfigError
from zoo.network.slots import Slot

Place = Literal["input", "output"]
PLACES: tuple[Place, ...] = ("input", "output")


def activation_slots(net: nn.Module) -> list[Slot]:
    """List the places of a network where its activations can be multiplied.

    A module that has an attribute called ``input`` or ``output`` itself lacks that place.
    """
    like = next(net.parameters(), torch.empty(())).detach()
    slots = []
    for name, module in net.named_modules():
        for place in PLACES:
            if not hasattr(module, place):
                ones = like.new_ones(_num_units(module, place))
                slot = Slot(
                    f"{name}.{place}" if name else place,
                    ones,
                    "activation",
                    by_name=not isinstance(module, nn.Linear | nn.modules.conv._ConvNd),
                    install=partial(_install, name, place, ones),
                )
                slots.append(slot)
    return slots


def _num_units(module: nn.Module, place: Place) -> int:
    """Return how many units enter or leave a layer; one for all of them where nobody knows."""
    if isinstance(module, nn.Linear):
        return module.in_features if place == "input" else module.out_features
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.in_channels if place == "input" else module.out_channels
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return module.num_features
    return 1


def _trailing(module: nn.Module, x: Tensor) -> int:
    """Return how many dimensions follow that of the units: positions in an image, for example."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return len(module.kernel_size)
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return x.dim() - 2
    return 0


def _install(name: str, place: Place, ones: Tensor, net: nn.Module) -> None:
    """Give a module its multipliers, and the hook that applies them."""
    module = net.get_submodule(name)
    # Not part of the state: it is a place for draws, and stays one.
    module.register_buffer(place, ones, persistent=False)
    if place == "input":
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
    trailing = _trailing(module, x)
    *front, num_units = multipliers.shape
    between = max(0, x.dim() - len(front) - 1 - trailing)
    shape = (*front, *(1,) * between, num_units, *(1,) * trailing)
    return x * multipliers.reshape(shape).to(x.dtype)


def silent_slots(net: nn.Module, names: Iterable[str], x: Tensor) -> list[str]:
    """Return the slots whose module is not called on these rows.

    Some layers read the parameters of a part without calling it, as attention does with its output
    projection. Noise there would have no effect.
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
