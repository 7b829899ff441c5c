"""Units that are constant, that is the same for all rows.

A unit whose incoming weights are all zero emits its bias, through whatever activation follows. Its
contribution to the layers that read it is added to their biases, after which they no longer need
it. The constants of a value are one number per unit, NaN where the unit is not constant.
"""

import torch
from torch import Tensor

from zoo.compress.folding import add_constant_inputs
from zoo.compress.graph import LayerGraph, LayerNode
from zoo.compress.loader import OPERATIONS


@torch.no_grad()
def absorb_constants(graph: LayerGraph) -> None:
    """Move the contributions of constant units into the biases of the layers that read them.

    The outputs of the network stay the same. Convolutions with padding see zeros beyond the border
    instead of the constant, so they absorb only units that are zero.
    """
    like = graph.weighted()[0].weight
    found = {graph.input: like.new_full(graph.input.shape[:1], torch.nan)}
    for node in graph:
        constants = _constants(node, [found[source] for source in node.inputs])
        found[node] = like.new_full(node.shape[:1], torch.nan) if constants is None else constants


def _constants(node: LayerNode, inputs: list[Tensor]) -> Tensor | None:
    first = inputs[0]
    known = ~first.isnan()
    # Constant in every window: beyond a border there are zeros.
    seen = first == 0 if node.is_padded else known
    value = torch.where(known, first, 0.0)
    if node.mixes_units:
        if seen.any():
            add_constant_inputs(node, torch.where(seen, value, 0.0))
            shape = (1, -1, *(1 for _ in node.weight.shape[2:]))
            node.tensors["weight"] = node.weight.masked_fill(seen.reshape(shape), 0.0)
        return _where(_without_inputs(node), node.bias())
    if node.is_depthwise:
        value = node.weight.flatten(1).sum(1) * value + node.bias()
        return _where(seen | _without_inputs(node), value)
    if OPERATIONS[node.op].is_elementwise:
        return _where(known, OPERATIONS[node.op].function(value, **node.arguments))
    if node.op == "affine" and node.tensors["scale"].numel() == node.shape[0]:
        scale, shift = node.tensors["scale"].flatten(), node.tensors["shift"].flatten()
        return _where(known | (scale == 0), scale * value + shift)
    if node.op == "max_pool":
        return first
    if node.op == "avg_pool":
        return _where(seen, value)
    if node.op == "reshape" and node.split_factor is not None:
        return first.repeat_interleave(node.split_factor)
    if node.op == "select":
        return first[node.tensors["keep"]]
    if node.op == "concat":
        return torch.cat(inputs)
    if node.op == "add" and len(first) == len(inputs[1]):
        return first + inputs[1]
    if node.op == "mul" and len(first) == len(inputs[1]):
        return torch.where((first == 0) | (inputs[1] == 0), 0.0, first * inputs[1])
    return None


def _without_inputs(node: LayerNode) -> Tensor:
    return ~node.weight.flatten(1).any(1)


def _where(known: Tensor, value: Tensor) -> Tensor:
    return torch.where(known, value, torch.nan)
