"""Network specifications: ``mlp:64-100-10``, ``module:my_net.py:build``, mappings for graphs."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from zoo.errors import ConfigError, unknown_name
from zoo.network.nets.architectures import ACTIVATIONS, lenet5, mlp, polynomial
from zoo.network.nets.graph_spec import TOY, cell_spec, graph_net
from zoo.parsing.calls import plain_mapping

#: Hidden units of the default network.
DEFAULT_HIDDEN = 50
#: Highest degree of a polynomial; higher powers of standardised inputs overflow.
MAX_DEGREE = 20
#: Largest number of nodes in a cell, and of cells.
MAX_CELLS = 12


@dataclass(frozen=True)
class Shape:
    """Input and output shapes of a network."""

    num_inputs: int
    num_outputs: int
    image_shape: tuple[int, int, int] | None = None


def spell_out(
    spec: str | Mapping[str, Any], num_inputs: int, num_outputs: int
) -> str | dict[str, Any]:
    """Return the specification with explicit sizes; a graph file is replaced by its content."""
    if not isinstance(spec, str):
        return dict(spec)
    name, _, argument = spec.partition(":")
    if name == "graph":
        return read_graph(argument)
    if name == "mlp" and (not argument or argument.startswith(":")):
        return f"mlp:{num_inputs}-{DEFAULT_HIDDEN}-{num_outputs}{argument}"
    return spec


def read_graph(path: str) -> dict[str, Any]:
    """Read the mapping of a graph network from a YAML file."""
    if not path:
        raise ConfigError("a graph is named graph:path.yaml, or is a mapping. Got 'graph:'.")
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the graph {path!r}: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{path!r} is not valid YAML: {problem}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"the graph {path!r} must be a mapping with the key 'edges'.")
    return plain_mapping(values, f"the graph {path!r}", ConfigError)


def build_net(
    spec: str | Mapping[str, Any],
    num_inputs: int,
    num_outputs: int,
    image_shape: tuple[int, int, int] | None = None,
) -> nn.Module:
    """Build a network from its specification, for the shapes of the data and the likelihood.

    The specification is ``mlp``, ``mlp:64-100-10``, ``mlp:64-100-10:tanh``, ``mlp::tanh``,
    ``linear``, ``polynomial:3``, ``lenet300``, ``lenet5``, ``cells:8-2-2``, ``toy``,
    ``graph:path.yaml``, or ``module:path.py:function``, which imports the file and calls the
    function. A mapping is a graph, see `zoo.network.nets.graph_spec`.
    """
    spelled = spell_out(spec, num_inputs, num_outputs)
    if not isinstance(spelled, str):
        return graph_net(spelled, num_inputs, num_outputs, image_shape)
    name, _, argument = spelled.partition(":")
    if name not in NETS:
        known = [net.notation for net in NETS.values()]
        raise unknown_name("network", spelled, [*known, "graph:path.yaml"])
    if argument and ":" not in NETS[name].notation:
        raise ConfigError(f"the network {name!r} takes no sizes. Got '{name}:{argument}'.")
    return NETS[name].build(argument, Shape(num_inputs, num_outputs, image_shape))


def _mlp(argument: str, shape: Shape) -> nn.Module:
    sizes_text, _, activation = argument.partition(":")
    activation = activation or "relu"
    if activation not in ACTIVATIONS:
        raise unknown_name("activation", activation, ACTIVATIONS)
    sizes = _sizes(sizes_text)
    if len(sizes) < 2:
        raise ConfigError(
            f"the sizes of a network are positive numbers joined by '-', like mlp:64-100-10. "
            f"Got 'mlp:{argument}'."
        )
    for what, got, wanted in (
        ("inputs", sizes[0], shape.num_inputs),
        ("outputs", sizes[-1], shape.num_outputs),
    ):
        if got != wanted:
            raise ConfigError(
                f"the network 'mlp:{argument}' has {got} {what}, but data and likelihood need "
                f"{wanted}: mlp:{shape.num_inputs}-...-{shape.num_outputs}."
            )
    return mlp(sizes, activation)


def _sizes(text: str) -> list[int]:
    """Return positive numbers joined by '-', or an empty result for any other text."""
    pieces = text.split("-")
    good = all(p.isascii() and p.isdigit() and len(p) < 8 and int(p) > 0 for p in pieces)
    return [int(piece) for piece in pieces] if good else []


def _cells(argument: str, shape: Shape) -> nn.Module:
    sizes = _sizes(argument)
    if len(sizes) != 3 or max(sizes[1:]) > MAX_CELLS:
        raise ConfigError(
            f"a network of cells is named by its channels, nodes in a cell and cells (at most "
            f"{MAX_CELLS} of both), like cells:8-2-2. Got 'cells:{argument}'."
        )
    spec = cell_spec(*sizes)
    return graph_net(spec, shape.num_inputs, shape.num_outputs, shape.image_shape)


def _polynomial(argument: str, shape: Shape) -> nn.Module:
    if not (argument.isascii() and argument.isdigit() and 1 <= int(argument[:4]) <= MAX_DEGREE):
        raise ConfigError(
            f"the degree of a polynomial is a number from 1 to {MAX_DEGREE}, like polynomial:3. "
            f"Got 'polynomial:{argument}'."
        )
    return polynomial(shape.num_inputs, int(argument), shape.num_outputs)


def _lenet5(argument: str, shape: Shape) -> nn.Module:
    if shape.image_shape is None or min(shape.image_shape[1:]) < 16:
        got = shape.image_shape or f"{shape.num_inputs} features and no image shape"
        raise ConfigError(
            f"the network 'lenet5' needs images of at least 16x16 pixels. The data have {got}."
        )
    return lenet5(shape.image_shape, shape.num_outputs)


def _module(argument: str, shape: Shape) -> nn.Module:
    path_text, _, function_name = argument.rpartition(":")
    if not path_text or not function_name:
        raise ConfigError(
            f"a custom network is written module:path.py:function. Got 'module:{argument}'."
        )
    function = _load_function(Path(path_text), function_name)
    wanted = asdict(shape)
    accepted = inspect.signature(function).parameters
    unknown = [
        name
        for name, parameter in accepted.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in wanted
    ]
    if unknown:
        raise ConfigError(
            f"the function {function_name!r} may take {', '.join(wanted)}, but it takes "
            f"{', '.join(unknown)}."
        )
    net = function(**{name: value for name, value in wanted.items() if name in accepted})
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"the function {function_name!r} must return a torch.nn.Module. "
            f"It returned {type(net).__name__}."
        )
    return net


def _load_function(path: Path, name: str) -> Callable[..., object]:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r} with the network {name!r}.")
    module_spec = importlib.util.spec_from_file_location(f"zoo_user_net_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"the file {str(path)!r} is not a Python module (it must end in .py).")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except (SyntaxError, ImportError, NameError, AttributeError) as error:
        raise ConfigError(f"the file {str(path)!r} cannot be imported: {error}") from error
    function: Callable[..., object] | None = getattr(module, name, None)
    if function is None or not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"the file {str(path)!r} has no function {name!r}. "
            f"Functions: {', '.join(known) or 'none'}."
        )
    return function


@dataclass(frozen=True)
class Net:
    """A named network: its notation, and a function of the text after the colon and the shape."""

    notation: str
    build: Callable[[str, Shape], nn.Module]


NETS: dict[str, Net] = {
    "mlp": Net("mlp:64-100-10", _mlp),
    "linear": Net("linear", lambda _, shape: mlp([shape.num_inputs, shape.num_outputs])),
    "polynomial": Net("polynomial:3", _polynomial),
    "lenet300": Net(
        "lenet300", lambda _, shape: mlp([shape.num_inputs, 300, 100, shape.num_outputs])
    ),
    "lenet5": Net("lenet5", _lenet5),
    "cells": Net("cells:8-2-2", _cells),
    "toy": Net("toy", lambda _, shape: graph_net(TOY, shape.num_inputs, shape.num_outputs)),
    "module": Net("module:path.py:function", _module),
}
