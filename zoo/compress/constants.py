"""Units that are the same number whatever the rows are.

A unit whose incoming weights are all zero emits its bias, through whatever activation follows. What
it contributes to the layers that read it is added to their biases, after which nobody listens to it
any more.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.compress.folding import add_constant_inputs, mixes_units, split_factor
from zoo.compress.graph import Graph, Node
from zoo.compress.loader import INPUT, OPERATIONS

#: Operations that do the same to every number.
ACTIVATIONS = (
    "relu tanh sigmoid elu selu celu gelu silu mish hardswish leaky_relu softplus hardtanh".split()
)


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


@torch.no_grad()
def absorb_constants(graph: Graph) -> None:
    """Move what constant units contribute into the biases of the layers that read them.

    The outputs of the network stay the same. Convolutions with padding see zeros beyond the border
    instead of the constant, so they absorb only units that are zero.
    """
    like = next(iter(graph.weighted())).weight
    found = {INPUT: Constants.none(graph.input_shape[0], like)}
    for node in graph:
        inputs = [found[name] for name in node.inputs]
        found[node.name] = _constants(graph, node, inputs, like)


def _constants(graph: Graph, node: Node, inputs: list[Constants], like: Tensor) -> Constants:
    first = inputs[0]
    if node.has_weight:
        if mixes_units(graph, node):
            return _absorb(node, first)
        if node.is_depthwise:
            return _depthwise(node, first)
    elif node.op in ACTIVATIONS:
        module = OPERATIONS[node.op].build(node.name, {"op": node.op, **node.arguments}, {})
        return Constants.where(first.known, module(first.value))
    elif node.op == "affine" and node.tensors["scale"].numel() == node.shape[0]:
        scale, shift = node.tensors["scale"].flatten(), node.tensors["shift"].flatten()
        return Constants.where(first.known | (scale == 0), scale * first.value + shift)
    elif node.op == "max_pool" or (node.op == "avg_pool" and not node.is_padded):
        return first
    elif node.op == "avg_pool":
        return Constants.where(first.known & (first.value == 0), first.value)
    elif node.op == "reshape":
        factor = split_factor(graph.shape(node.inputs[0]), node.shape)
        if factor is not None:
            return Constants(*(p.repeat_interleave(factor) for p in (first.known, first.value)))
    elif node.op == "select":
        keep = node.tensors["keep"]
        return Constants(first.known[keep], first.value[keep])
    elif node.op == "concat":
        return Constants(
            torch.cat([part.known for part in inputs]), torch.cat([part.value for part in inputs])
        )
    elif node.op in ("add", "mul") and len(first.known) == len(inputs[1].known):
        return _pair(node.op, first, inputs[1])
    return Constants.none(node.shape[0], like)


def _absorb(node: Node, inputs: Constants) -> Constants:
    absorbed = inputs.known & (inputs.value == 0) if node.is_padded else inputs.known
    if absorbed.any():
        add_constant_inputs(node, torch.where(absorbed, inputs.value, 0.0))
        shape = (1, -1, *(1 for _ in node.weight.shape[2:]))
        node.tensors["weight"] = node.weight.masked_fill(absorbed.reshape(shape), 0.0)
    silent = ~node.weight.flatten(1).any(1)
    return Constants.where(silent, node.bias())


def _depthwise(node: Node, inputs: Constants) -> Constants:
    known = inputs.known & (inputs.value == 0) if node.is_padded else inputs.known
    total = node.weight.flatten(1).sum(1)
    known = known | ~node.weight.flatten(1).any(1)
    return Constants.where(known, total * inputs.value + node.bias())


def _pair(op: str, first: Constants, second: Constants) -> Constants:
    if op == "add":
        return Constants.where(first.known & second.known, first.value + second.value)
    zero = (first.known & (first.value == 0)) | (second.known & (second.value == 0))
    return Constants.where((first.known & second.known) | zero, first.value * second.value)
