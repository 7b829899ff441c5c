"""Physically smaller networks: units that are constant or that nobody listens to are removed.

Whether a unit can go is read off the weights alone. Masks set weights to zero; a unit whose
incoming weights are zero is constant and moves into the next biases (`zoo.compress.constants`); a
unit whose outgoing weights are zero is not heard. Operations that act on units one by one, and sums
of several branches, must keep the same units on all sides: they share one mask. So removing a unit
takes its incoming and outgoing weights with it, through flattening, normalisation, pooling and
residual sums, and the smaller network computes the same numbers.
"""

import copy

import torch
from torch import Tensor

from zoo.compress.constants import ACTIVATIONS, absorb_constants
from zoo.compress.folding import fold_affines, mixes_units, split_factor
from zoo.compress.graph import Graph, Node
from zoo.compress.loader import INPUT

#: Operations whose unit `i` depends on unit `i` of each input and on nothing else.
UNITWISE = {*ACTIVATIONS, "affine", "max_pool", "avg_pool", "add", "mul"}


@torch.no_grad()
def shrink(graph: Graph) -> Graph:
    """Return the smallest network that computes the same, by removing whole units."""
    small = copy.deepcopy(graph)
    fold_affines(small)
    absorb_constants(small)
    keep = _kept_units(small)
    for name in [INPUT, *small.nodes]:
        _slice(small, name, keep)
    _remove_full_selects(small)
    small.update_shapes()
    return small


def _is_unitwise(graph: Graph, node: Node) -> bool:
    if node.is_depthwise:
        return True
    same = all(
        graph.shape(name)[0] == node.shape[0] and len(graph.shape(name)) == len(node.shape)
        for name in node.inputs
    )
    return node.op in UNITWISE and same


# ---------------------------------------------------------------------- which units stay


class _Masks:
    """One mask for all values that must have the same units."""

    def __init__(self, graph: Graph) -> None:
        self._parent = {name: name for name in (INPUT, *graph.nodes)}
        for node in graph:
            if _is_unitwise(graph, node):
                for name in node.inputs:
                    self._parent[self._root(name)] = self._root(node.name)
        self._keep = {
            self._root(name): torch.zeros(graph.shape(name)[0], dtype=torch.bool)
            for name in self._parent
        }

    def _root(self, name: str) -> str:
        while self._parent[name] != name:
            name = self._parent[name]
        return name

    def __getitem__(self, name: str) -> Tensor:
        return self._keep[self._root(name)]

    def demand(self, name: str, units: Tensor) -> bool:
        """Keep these units as well, and tell whether that is news."""
        before = self[name]
        self._keep[self._root(name)] = before | units.cpu()
        return bool((self[name] != before).any())

    def empty(self) -> list[str]:
        """Return values of which nothing is kept."""
        return [name for name, keep in self._keep.items() if not keep.any()]


def _kept_units(graph: Graph) -> dict[str, Tensor]:
    """Return for every value the units that the output depends on, at least one."""
    masks = _Masks(graph)
    masks.demand(graph.output, torch.ones_like(masks[graph.output]))
    for node in graph:
        if _is_opaque(graph, node):
            for name in (node.name, *node.inputs):
                masks.demand(name, torch.ones_like(masks[name]))
    while True:
        while any([_demand_inputs(graph, node, masks) for node in reversed(list(graph))]):
            pass
        if not masks.empty():
            return {name: masks[name] for name in (INPUT, *graph.nodes)}
        for name in masks.empty():  # layers without units are no layers
            first = torch.zeros_like(masks[name])
            first[0] = True
            masks.demand(name, first)


def _is_opaque(graph: Graph, node: Node) -> bool:
    """Tell whether a node needs all of its units: it mixes them in ways that are not followed."""
    if node.op == "reshape":
        before, after = graph.shape(node.inputs[0])[0], node.shape[0]
        return bool(before % after and after % before)
    if node.op in ("select", "concat"):
        return False
    return not mixes_units(graph, node) and not _is_unitwise(graph, node)


def _demand_inputs(graph: Graph, node: Node, masks: _Masks) -> bool:
    keep = masks[node.name]
    if _is_opaque(graph, node) or _is_unitwise(graph, node):
        return False
    if node.has_weight:
        num_in = node.weight.shape[1]
        heard = node.weight[keep].transpose(0, 1).reshape(num_in, -1).any(1)
        return masks.demand(node.inputs[0], heard)
    if node.op == "select":
        return masks.demand(node.inputs[0], _placed(node.tensors["keep"], keep))
    if node.op == "concat":
        sizes = [graph.shape(name)[0] for name in node.inputs]
        parts = zip(node.inputs, keep.split(sizes), strict=True)
        return any([masks.demand(name, part) for name, part in parts])
    return masks.demand(node.inputs[0], _units_before(graph, node, keep))


def _placed(mask: Tensor, values: Tensor) -> Tensor:
    """Put values where a mask is true."""
    placed = torch.zeros_like(mask)
    placed[mask] = values
    return placed


def _units_before(graph: Graph, node: Node, keep: Tensor) -> Tensor:
    """Return the units before a reshape that make the units after it."""
    num_before = graph.shape(node.inputs[0])[0]
    if len(keep) % num_before == 0:
        return keep.reshape(num_before, -1).any(1)
    return keep.repeat_interleave(num_before // len(keep))


# ---------------------------------------------------------------------- slicing


def _slice(graph: Graph, name: str, keep: dict[str, Tensor]) -> None:
    """Leave only the kept units of a value."""
    kept = keep[name]
    if name == INPUT:
        _select_after(graph, INPUT, kept, keep)
        return
    node = graph.nodes[name]
    before = keep[node.inputs[0]]
    if mixes_units(graph, node):
        _slice_weight(node, kept, before)
    elif node.is_depthwise or node.op == "affine":
        _slice_weight(node, kept, None)
    elif node.op == "select":
        node.tensors["keep"] = _placed(node.tensors["keep"], kept)[before]
    elif node.op == "concat":
        made = torch.cat([keep[source] for source in node.inputs])
        _select_after(graph, name, kept[made], keep)
    elif node.op == "reshape" and not _is_opaque(graph, node):
        _slice_reshape(graph, node, kept, keep)


def _slice_weight(node: Node, kept: Tensor, before: Tensor | None) -> None:
    if node.is_depthwise:
        node.arguments["groups"] = int(kept.sum())
    for key, value in node.tensors.items():
        columns = key == "weight" and before is not None
        node.tensors[key] = value[kept][:, before] if columns else value[kept]
    if node.variance is not None:
        node.variance = node.variance[kept] if before is None else node.variance[kept][:, before]


def _slice_reshape(graph: Graph, node: Node, kept: Tensor, keep: dict[str, Tensor]) -> None:
    source = node.inputs[0]
    before = keep[source]
    factor = split_factor(graph.shape(source), node.shape)
    rest = list(node.shape[1:])
    if factor is not None:
        made = before.repeat_interleave(factor)
        node.arguments = {"shape": [int(made.sum()), *rest]}
        _select_after(graph, node.name, kept[made], keep)
        return
    needed = _units_before(graph, node, kept)
    node.arguments = {"shape": [int(kept.sum()), *rest]}
    select = Node(
        graph.free_name("select"), "select", [source], (), tensors={"keep": needed[before]}
    )
    node.inputs = [select.name]
    graph.insert_before(node.name, select)


def _select_after(graph: Graph, name: str, picked: Tensor, keep: dict[str, Tensor]) -> None:
    """Let everything that reads a value read only some of its units."""
    if picked.all():
        return
    shape = graph.shape(name)
    select = Node(graph.free_name("select"), "select", [], shape, tensors={"keep": picked})
    keep[select.name] = keep[name]
    graph.replace_input(name, select.name)
    select.inputs = [name]
    order = list(graph.nodes)
    place = 0 if name == INPUT else order.index(name) + 1
    graph.insert_before(order[place] if place < len(order) else None, select)


def _remove_full_selects(graph: Graph) -> None:
    for node in list(graph):
        if node.op == "select" and bool(node.tensors["keep"].all()):
            graph.replace_input(node.name, node.inputs[0])
            del graph.nodes[node.name]
