"""A network as a list of operations on units: what compression works on.

A value has a batch in front, and then *units*: the features of a vector, the channels of a map. The
weights are kept in float64, so that folding one operation into another costs no accuracy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zoo.compress.loader import FORMAT, INPUT, VERSION, Network


@dataclass(eq=False)
class Node:
    """One operation.

    Attributes
    ----------
    name
        Its name in the description.
    op
        A key of `zoo.compress.loader.OPERATIONS`.
    inputs
        Names of the nodes it reads.
    shape
        Shape of its value for one row, units first.
    arguments
        The arguments of the operation, as plain types.
    tensors
        Its weights.
    slot
        The slot of the model whose value the weight is, if it is one.
    variance
        Posterior variance of the weight, where it is known.
    """

    name: str
    op: str
    inputs: list[str]
    shape: tuple[int, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    slot: str | None = None
    variance: Tensor | None = None

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
        """Whether a window reaches over the border, where there are zeros."""
        return any(self.arguments.get("padding", ()))

    @property
    def is_depthwise(self) -> bool:
        """Whether it is a convolution of every channel with a kernel of its own."""
        groups = self.arguments.get("groups", 1)
        return self.op == "conv" and groups > 1 and self.weight.shape[:2] == (groups, 1)

    def bias(self) -> Tensor:
        """Return the bias, zeros if there is none."""
        bias = self.tensors.get("bias")
        return self.weight.new_zeros(len(self.weight)) if bias is None else bias


@dataclass
class Graph:
    """Operations in the order in which they are computed."""

    input_shape: tuple[int, ...]
    nodes: dict[str, Node]
    output: str

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a value for one row."""
        return self.input_shape if name == INPUT else self.nodes[name].shape

    def consumers(self, name: str) -> list[Node]:
        """Return the nodes that read a value."""
        return [node for node in self if name in node.inputs]

    def weighted(self) -> list[Node]:
        """Return the linear layers and convolutions."""
        return [node for node in self if node.has_weight]

    def replace_input(self, old: str, new: str) -> None:
        """Let everything that read one value read another."""
        for node in self:
            node.inputs = [new if name == old else name for name in node.inputs]
        self.output = new if self.output == old else self.output

    def free_name(self, wanted: str) -> str:
        """Return a name that no node has."""
        taken = {INPUT, *self.nodes}
        names = (wanted if k == 0 else f"{wanted}_{k}" for k in range(len(taken) + 1))
        return next(name for name in names if name not in taken)

    def insert_before(self, place: str | None, node: Node) -> None:
        """Put a node in front of another one, or at the end."""
        before = dict(self.nodes)
        self.nodes.clear()
        for name, known in before.items():
            if name == place:
                self.nodes[node.name] = node
            self.nodes[name] = known
        self.nodes.setdefault(node.name, node)

    def description(self, **metadata: Any) -> dict[str, Any]:
        """Return the description that the loader reads, without how tensors are packed."""
        nodes = [
            {"name": node.name, "op": node.op, "inputs": list(node.inputs), **node.arguments}
            for node in self
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "input": list(self.input_shape),
            "output": self.output,
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
        """Compute the shapes of all values anew."""
        rows = torch.zeros(1, *self.input_shape, dtype=torch.float64)
        for name, value in self.network().values(rows):
            self.nodes[name].shape = tuple(value.shape[1:])
