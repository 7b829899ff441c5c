"""Building blocks for reading a recorded network: new nodes, and what cannot become one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.compress.graph import LayerGraph, LayerNode, Shape
from zoo.errors import CompressionError


class GraphBuilder:
    """Appends nodes to a graph.

    Parameters
    ----------
    row_shape
        Shape of one row.
    slots
        Values of the slots; a weight that is one of them gives its node the slot's name.
    """

    def __init__(self, row_shape: Sequence[int], slots: Mapping[str, Tensor]) -> None:
        self.graph = LayerGraph(row_shape)
        self._slot_of = {id(value): name for name, value in slots.items()}
        self._example = next(iter(slots.values()))

    def add(
        self,
        op: str,
        inputs: Sequence[LayerNode],
        shape: Shape,
        arguments: Mapping[str, Any] | None = None,
        **tensors: Tensor | None,
    ) -> LayerNode:
        """Append a node."""
        slot = self._slot_of.get(id(tensors.get("weight")))
        stem = slot.removesuffix(".weight").replace(".", "_") if slot else op
        name = re.sub(r"\W", "_", stem, flags=re.ASCII)[:100]
        held = {key: value for key, value in tensors.items() if value is not None}
        node = LayerNode(name, op, list(inputs), shape, dict(arguments or {}), held, slot)
        return self.graph.add(node)

    def affine(
        self, x: LayerNode, scale: Tensor | float, shift: Tensor | float, shape: Shape
    ) -> LayerNode:
        """Append a factor and a shift; constants are brought to one entry per unit or element."""
        if shape != x.shape:
            raise unsupported("a constant that makes a value larger")
        parts = [_per_unit(self._example.new_zeros(()) + part, shape) for part in (scale, shift)]
        factors, shifts = (part.clone() for part in torch.broadcast_tensors(*parts))
        return self.add("affine", [x], shape, scale=factors, shift=shifts)


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
