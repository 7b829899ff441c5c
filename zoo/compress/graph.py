"""The representation of a network during compression: a list of operations on units.

The first dimension of a value is the batch, the second consists of *units*: the features of a
vector or the channels of a map. Weights are in float64, so that folding operations into each other
loses no accuracy. A ``torch.fx.GraphModule`` would keep shapes, slots and variances in untyped
dictionaries and compile source code whenever it is copied, which takes three to eight times as
long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zoo.compress.loader import FORMAT, INPUT, VERSION, Network

Shape = tuple[int, ...]


@dataclass(eq=False)
class LayerNode:
    """One operation and its value.

    Attributes
    ----------
    op
        A key of `zoo.compress.loader.OPERATIONS`, or ``input`` for the rows.
    shape
        Shape of the value for one row, units first.
    arguments, tensors
        Arguments of the operation, as plain types, and its weights.
    slot
        The slot of the model that holds the weight, if there is one.
    variance
        Posterior variance of the weight, if known.
    """

    name: str
    op: str
    inputs: list["LayerNode"]
    shape: Shape
    arguments: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    slot: str | None = None
    variance: Tensor | None = None

    @property
    def source(self) -> "LayerNode":
        """The first node it reads."""
        return self.inputs[0]

    @property
    def weight(self) -> Tensor:
        """The weight of a linear layer or a convolution."""
        return self.tensors["weight"]

    @property
    def has_weight(self) -> bool:
        """Whether it is a linear layer or a convolution."""
        return self.op in ("linear", "conv")

    @property
    def is_padded(self) -> bool:
        """Whether a window is padded with zeros."""
        return any(self.arguments.get("padding", ()))

    @property
    def is_depthwise(self) -> bool:
        """Whether it is a convolution with one kernel per channel."""
        groups = self.arguments.get("groups", 1)
        return self.op == "conv" and groups > 1 and self.weight.shape[:2] == (groups, 1)

    @property
    def mixes_units(self) -> bool:
        """Whether it is a layer whose weight has units in its first two dimensions."""
        if self.op == "conv":
            return bool(self.arguments["groups"] == 1)
        return self.op == "linear" and len(self.source.shape) == 1

    @property
    def split_factor(self) -> int | None:
        """The number of units into which a reshape splits each unit, None if it does not."""
        before, after = self.source.shape[0], self.shape[0]
        return after // before if after % before == 0 else None

    def bias(self) -> Tensor:
        """Return the bias, zeros if there is none."""
        bias = self.tensors.get("bias")
        return self.weight.new_zeros(len(self.weight)) if bias is None else bias


class LayerGraph:
    """Operations on rows of one shape, in the order in which they are computed."""

    def __init__(self, input_shape: Sequence[int]) -> None:
        self.input = self.output = LayerNode(INPUT, INPUT, [], tuple(input_shape))
        self.nodes: list[LayerNode] = []

    def __iter__(self) -> Iterator[LayerNode]:
        return iter(self.nodes)

    def __getitem__(self, name: str) -> LayerNode:
        return next(node for node in self if node.name == name)

    def add(self, node: LayerNode, *, behind: LayerNode | None = None) -> LayerNode:
        """Append a node, or insert it behind another one; a name in use gets a number."""
        taken = {INPUT, *(known.name for known in self)}
        names = (node.name if k == 0 else f"{node.name}_{k}" for k in range(len(taken) + 1))
        node.name = next(name for name in names if name not in taken)
        known = [self.input, *self.nodes]
        self.nodes.insert(len(self.nodes) if behind is None else known.index(behind), node)
        return node

    def consumers(self, value: LayerNode) -> list[LayerNode]:
        """Return the nodes that read a value."""
        return [node for node in self if value in node.inputs]

    def weighted(self) -> list[LayerNode]:
        """Return the linear layers and convolutions."""
        return [node for node in self if node.has_weight]

    def replace(self, old: LayerNode, new: LayerNode) -> None:
        """Replace a value wherever it is used."""
        for node in self:
            if node is not new:
                node.inputs = [new if source is old else source for source in node.inputs]
        self.output = new if self.output is old else self.output

    def remove(self, node: LayerNode) -> None:
        """Remove a node; its input takes its place."""
        self.replace(node, node.source)
        self.nodes.remove(node)

    def remove_unused(self) -> None:
        """Remove nodes whose value the output does not depend on."""
        for node in reversed(self.nodes[:]):
            if node is not self.output and not self.consumers(node):
                self.nodes.remove(node)

    def description(self, **metadata: Any) -> dict[str, Any]:
        """Return the description that the loader reads, without the packing of tensors."""
        nodes = [
            {"name": node.name, "op": node.op, "inputs": [n.name for n in node.inputs]}
            | node.arguments
            for node in self
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "input": list(self.input.shape),
            "output": self.output.name,
            "nodes": nodes,
            "metadata": metadata,
        }

    def tensors(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Return all tensors by the names that the loader expects; masks stay boolean."""
        return {
            f"{node.name}.{key}": value if value.dtype == torch.bool else value.to(dtype)
            for node in self
            for key, value in node.tensors.items()
        }

    def network(self, dtype: torch.dtype = torch.float64, **metadata: Any) -> Network:
        """Return the network as a module."""
        return Network(self.description(**metadata), self.tensors(dtype)).eval()

    @torch.no_grad()
    def update_shapes(self) -> None:
        """Compute the shapes of all values again."""
        rows = torch.zeros(1, *self.input.shape, dtype=torch.float64)
        for node, (_, value) in zip(self, self.network().values(rows), strict=True):
            node.shape = tuple(value.shape[1:])
