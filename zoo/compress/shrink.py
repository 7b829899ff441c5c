"""Smaller networks: units that are constant or unused are removed.

Whether a unit can be removed depends on the weights alone. A unit whose incoming weights are zero
is constant and moves into the next biases (`zoo.compress.constants`); a unit whose outgoing weights
are zero is unused. Operations that act on units one by one, and sums of several branches, must keep
the same units on all sides. Removing a unit removes its incoming and outgoing weights, through
flattening, normalisation, pooling and residual sums, and the outputs of the network stay the same.
"""

import copy

import torch
from torch import Tensor

from zoo.compress.constants import absorb_constants
from zoo.compress.folding import fold_affines
from zoo.compress.graph import LayerGraph, LayerNode
from zoo.compress.loader import OPERATIONS

#: Operations, besides elementwise ones, whose unit `i` depends only on unit `i` of each input.
UNITWISE = ("affine", "max_pool", "avg_pool", "add", "mul")

Keep = dict[LayerNode, Tensor]


@torch.no_grad()
def shrink(graph: LayerGraph) -> LayerGraph:
    """Return the smallest network that computes the same, by removing whole units."""
    small = copy.deepcopy(graph)
    fold_affines(small)
    absorb_constants(small)
    keep = _kept_units(small)
    for node in [small.input, *small.nodes]:
        _slice(small, node, keep)
    for node in small.nodes[:]:
        if node.op == "select" and bool(node.tensors["keep"].all()):
            small.remove(node)
    small.update_shapes()
    return small


def _is_unitwise(node: LayerNode) -> bool:
    same = all(
        source.shape[:1] == node.shape[:1] and len(source.shape) == len(node.shape)
        for source in node.inputs
    )
    is_unitwise = node.op in UNITWISE or OPERATIONS[node.op].is_elementwise
    return node.is_depthwise or (is_unitwise and same)


def _is_opaque(node: LayerNode) -> bool:
    """Tell whether a node needs all of its units, because it mixes them in an unknown way."""
    if node.op == "reshape":
        before, after = node.source.shape[0], node.shape[0]
        return bool(before % after and after % before)
    return not (node.op in ("select", "concat") or node.mixes_units or _is_unitwise(node))


# ---------------------------------------------------------------------- which units stay


def _kept_units(graph: LayerGraph) -> Keep:
    """Return for every value the units that the output depends on, at least one."""
    keep = {node: torch.zeros(node.shape[0], dtype=torch.bool) for node in (graph.input, *graph)}
    shared = {value: [value] for value in keep}  # values that must have the same units
    for node in filter(_is_unitwise, graph):
        for source in node.inputs:
            if shared[source] is not shared[node]:
                merged = shared[source] + shared[node]
                shared.update(dict.fromkeys(merged, merged))

    def demand(value: LayerNode, units: Tensor) -> bool:
        """Keep more units of a value, and tell whether any of them is new."""
        is_new = bool((units & ~keep[value]).any())
        if is_new:
            keep.update(dict.fromkeys(shared[value], keep[value] | units))
        return is_new

    opaque = [value for node in graph if _is_opaque(node) for value in (node, *node.inputs)]
    for value in (graph.output, *opaque):
        demand(value, torch.ones_like(keep[value]))
    while True:
        while any([demand(*need) for node in reversed(graph.nodes) for need in _needs(node, keep)]):
            pass
        empty = [value for value, units in keep.items() if not units.any()]
        if not empty:
            return keep
        for value in empty:  # a layer has at least one unit
            demand(value, torch.arange(len(keep[value])) == 0)


def _needs(node: LayerNode, keep: Keep) -> list[tuple[LayerNode, Tensor]]:
    """Return the units that a node needs of its inputs."""
    kept = keep[node]
    if _is_opaque(node) or _is_unitwise(node):
        return []
    if node.has_weight:
        num_in = node.weight.shape[1]
        used = node.weight[kept].transpose(0, 1).reshape(num_in, -1).any(1)
        return [(node.source, used.cpu())]
    if node.op == "select":
        return [(node.source, _placed(node.tensors["keep"], kept))]
    if node.op == "concat":
        parts = kept.split([source.shape[0] for source in node.inputs])
        return list(zip(node.inputs, parts, strict=True))
    return [(node.source, _units_before(node, kept))]


def _placed(mask: Tensor, values: Tensor) -> Tensor:
    """Put values where a mask is true."""
    placed = torch.zeros_like(mask)
    placed[mask] = values
    return placed


def _units_before(node: LayerNode, keep: Tensor) -> Tensor:
    """Return the units before a reshape that make the units after it."""
    num_before = node.source.shape[0]
    if len(keep) % num_before == 0:
        return keep.reshape(num_before, -1).any(1)
    return keep.repeat_interleave(num_before // len(keep))


# ---------------------------------------------------------------------- slicing


def _slice(graph: LayerGraph, node: LayerNode, keep: Keep) -> None:
    """Remove the units of a value that are not kept."""
    kept = keep[node]
    if node is graph.input:
        _select_after(graph, node, kept, keep)
    elif node.mixes_units:
        _slice_tensors(node, kept, keep[node.source])
    elif node.is_depthwise or node.op == "affine":
        _slice_tensors(node, kept, None)
    elif node.op == "select":
        node.tensors["keep"] = _placed(node.tensors["keep"], kept)[keep[node.source]]
    elif node.op == "concat":
        made = torch.cat([keep[source] for source in node.inputs])
        _select_after(graph, node, kept[made], keep)
    elif node.op == "reshape" and not _is_opaque(node):
        _slice_reshape(graph, node, kept, keep)


def _slice_tensors(node: LayerNode, kept: Tensor, before: Tensor | None) -> None:
    if node.is_depthwise:
        node.arguments["groups"] = int(kept.sum())
    columns = slice(None) if before is None else before
    for key, value in node.tensors.items():
        node.tensors[key] = value[kept][:, columns] if key == "weight" else value[kept]
    if node.variance is not None:
        node.variance = node.variance[kept][:, columns]


def _slice_reshape(graph: LayerGraph, node: LayerNode, kept: Tensor, keep: Keep) -> None:
    before, rest = keep[node.source], node.shape[1:]
    if node.split_factor is not None:
        made = before.repeat_interleave(node.split_factor)
        node.arguments = {"shape": [int(made.sum()), *rest]}
        _select_after(graph, node, kept[made], keep)
        return
    needed = _units_before(node, kept)
    node.arguments = {"shape": [int(kept.sum()), *rest]}
    node.inputs = [_add_select(graph, node.source, needed[before])]


def _select_after(graph: LayerGraph, value: LayerNode, picked: Tensor, keep: Keep) -> None:
    """Replace a value by some of its units wherever it is used."""
    if not picked.all():
        select = _add_select(graph, value, picked)
        keep[select] = keep[value]
        graph.replace(value, select)


def _add_select(graph: LayerGraph, value: LayerNode, picked: Tensor) -> LayerNode:
    select = LayerNode("select", "select", [value], value.shape, tensors={"keep": picked})
    return graph.add(select, behind=value)
