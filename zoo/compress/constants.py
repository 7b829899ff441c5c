"""Units that are the same number whatever the rows are.

A unit whose incoming weights are all zero emits its bias, through whatever activation follows. What
it contributes to the layers that read it is added to their biases, after which they no longer need
it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.compress.folding import add_constant_inputs
from zoo.compress.graph import LayerGraph, LayerNode
from zoo.compress.loader import OPERATIONS


@dataclass(frozen=True)
class Constants:
    """Which units of a value are constant, and their numbers; zero for the others."""

    known: Tensor
    value: Tensor

    @classmethod
    def none(cls, num_units: int, like: Tensor) -> "Constants":
        """No unit is constant."""
        zeros = like.new_zeros(num_units)
        return cls(zeros.bool(), zeros)

    @classmethod
    def where(cls, known: Tensor, value: Tensor) -> "Constants":
        """Forget the numbers of units that are not constant."""
        return cls(known, torch.where(known, value, torch.zeros_like(value)))

    def zeros(self) -> Tensor:
        """Return which units are known to be zero."""
        return self.known & (self.value == 0)

    def seen_by(self, node: LayerNode) -> Tensor:
        """Return which units are constant in every window: beyond a border there are zeros."""
        return self.zeros() if node.is_padded else self.known


@torch.no_grad()
def absorb_constants(graph: LayerGraph) -> None:
    """Move what constant units contribute into the biases of the layers that read them.

    The outputs of the network stay the same. Convolutions with padding see zeros beyond the border
    instead of the constant, so they absorb only units that are zero.
    """
    like = graph.weighted()[0].weight
    found = {graph.input: Constants.none(graph.input.shape[0], like)}
    for node in graph:
        inputs = [found[source] for source in node.inputs]
        found[node] = _constants(node, inputs) or Constants.none(node.shape[0], like)


def _constants(node: LayerNode, inputs: list[Constants]) -> Constants | None:
    first = inputs[0]
    if node.mixes_units:
        return _absorb(node, first)
    if node.is_depthwise:
        without_inputs = ~node.weight.flatten(1).any(1)
        value = node.weight.flatten(1).sum(1) * first.value + node.bias()
        return Constants.where(first.seen_by(node) | without_inputs, value)
    if OPERATIONS[node.op].is_elementwise:
        value = OPERATIONS[node.op].function(first.value, **node.arguments)
        return Constants.where(first.known, value)
    if node.op == "affine" and node.tensors["scale"].numel() == node.shape[0]:
        scale, shift = node.tensors["scale"].flatten(), node.tensors["shift"].flatten()
        return Constants.where(first.known | (scale == 0), scale * first.value + shift)
    if node.op == "max_pool":
        return first
    if node.op == "avg_pool":
        return Constants.where(first.seen_by(node), first.value)
    if node.op == "reshape" and node.split_factor is not None:
        factor = node.split_factor
        return Constants(*(part.repeat_interleave(factor) for part in (first.known, first.value)))
    if node.op == "select":
        keep = node.tensors["keep"]
        return Constants(first.known[keep], first.value[keep])
    if node.op == "concat":
        return Constants(torch.cat([c.known for c in inputs]), torch.cat([c.value for c in inputs]))
    if node.op in ("add", "mul") and len(first.known) == len(inputs[1].known):
        return _pair(node.op, first, inputs[1])
    return None


def _absorb(node: LayerNode, inputs: Constants) -> Constants:
    absorbed = inputs.seen_by(node)
    if absorbed.any():
        add_constant_inputs(node, torch.where(absorbed, inputs.value, 0.0))
        shape = (1, -1, *(1 for _ in node.weight.shape[2:]))
        node.tensors["weight"] = node.weight.masked_fill(absorbed.reshape(shape), 0.0)
    without_inputs = ~node.weight.flatten(1).any(1)
    return Constants.where(without_inputs, node.bias())


def _pair(op: str, first: Constants, second: Constants) -> Constants:
    known = first.known & second.known
    if op == "add":
        return Constants.where(known, first.value + second.value)
    return Constants.where(known | first.zeros() | second.zeros(), first.value * second.value)
