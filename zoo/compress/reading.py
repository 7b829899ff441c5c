"""Building blocks for reading a recorded network: values that depend on the rows, and new nodes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.compress.graph import Graph, Node
from zoo.errors import CompressionError

Shape = tuple[int, ...]


class Value:
    """A value that depends on the rows, by the name of its node."""

    def __init__(self, name: str) -> None:
        self.name = name


class GraphBuilder:
    """Appends nodes to a graph.

    Parameters
    ----------
    graph
        The graph, empty at first.
    slots
        Values of the slots; a weight that is one of them gives its node the slot's name.
    """

    def __init__(self, graph: Graph, slots: Mapping[str, Tensor]) -> None:
        self.graph = graph
        self._slot_of = {id(value): name for name, value in slots.items()}
        self._example = next(iter(slots.values()))

    def add(
        self,
        op: str,
        inputs: Sequence[Value],
        shape: Shape,
        arguments: Mapping[str, Any] | None = None,
        **tensors: Tensor | None,
    ) -> Value:
        """Append a node."""
        slot = self._slot_of.get(id(tensors.get("weight")))
        stem = slot.removesuffix(".weight").replace(".", "_") if slot else op
        name = self.graph.free_name(re.sub(r"\W", "_", stem, flags=re.ASCII)[:100])
        held = {key: value for key, value in tensors.items() if value is not None}
        self.graph.nodes[name] = Node(
            name, op, [v.name for v in inputs], shape, dict(arguments or {}), held, slot
        )
        return Value(name)

    def shape(self, value: Value) -> Shape:
        """Shape of a value for one row."""
        return self.graph.shape(value.name)

    def affine(self, x: Value, scale: Tensor | float, shift: Tensor | float, shape: Shape) -> Value:
        """Append a factor and a shift; constants are brought to one entry per unit or element."""
        if shape != self.shape(x):
            raise unsupported("a constant that makes a value larger")
        parts = [_per_unit(self._example.new_zeros(()) + part, shape) for part in (scale, shift)]
        common = torch.broadcast_shapes(*(part.shape for part in parts))
        scale, shift = (part.expand(common).clone() for part in parts)
        return self.add("affine", [x], shape, scale=scale, shift=shift)


def unsupported(what: str) -> CompressionError:
    """Return the error for something that cannot be made smaller."""
    return CompressionError(
        f"{what} cannot be compressed. Networks of linear layers, convolutions, batch and layer "
        "normalisation, pooling, activations, flattening, sums, products and concatenations can be."
    )


def _per_unit(constant: Tensor, shape: Shape) -> Tensor:
    """Return a constant with one entry per unit in front, and ones or elements behind."""
    if constant.dim() == len(shape) + 1 and len(constant) == 1:
        constant = constant[0]
    if constant.dim() > len(shape):
        raise unsupported("a constant that differs from row to row")
    constant = constant.reshape((1,) * (len(shape) - constant.dim()) + constant.shape)
    return constant.expand(shape[0], *constant.shape[1:])
