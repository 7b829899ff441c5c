"""Recorded densities, rewritten so that Inductor compiles them to faster code."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

aten = torch.ops.aten

#: Elements of a matrix from which its product with a vector is left to a library.
MIN_PRODUCT = 1024
#: Longest rows for which vectors of eight numbers are used.
NARROW = 8


def faster(graph: GraphModule, example: Tensor) -> GraphModule:
    """Return a graph of the same function that Inductor compiles to faster code.

    Inductor turns products of a matrix and a vector into loops, which take several times as long as
    the library that torch calls for products of matrices. A call has a cost, so small ones stay
    loops. The hyperbolic tangent is written with an exponential, which takes half as long and has
    an error below 1e-15. The shapes of all values are noted.
    """
    copied = Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    written = GraphModule(graph, copied)
    with torch.no_grad():
        _Shapes(written).run(example)
    rewrites = {aten.mv.default: _product, aten.tanh.default: _tangent}
    for node in list(copied.nodes):
        rewrite = rewrites.get(node.target)
        if rewrite is not None:
            with copied.inserting_before(node):
                made = rewrite(copied, node)
            if made is not None:
                made.meta = node.meta
                node.replace_all_uses_with(made)
                copied.erase_node(node)
    written.recompile()
    return written


def _product(graph: Graph, node: Node) -> Node | None:
    matrix, vector = node.args
    if math.prod(_shape(matrix)) < MIN_PRODUCT:
        return None
    column = graph.call_function(aten.unsqueeze.default, (vector, 1))
    product = graph.call_function(aten.mm.default, (matrix, column))
    return graph.call_function(aten.squeeze.dim, (product, 1))


def _tangent(graph: Graph, node: Node) -> Node:
    """Write tanh(x) = 1 - 2 / (1 + exp(2 x)), which is right also where exp overflows."""
    double = graph.call_function(aten.mul.Tensor, (node.args[0], 2.0))
    power = graph.call_function(aten.exp.default, (double,))
    total = graph.call_function(aten.add.Tensor, (power, 1.0))
    share = graph.call_function(aten.reciprocal.default, (total,))
    part = graph.call_function(aten.mul.Tensor, (share, -2.0))
    return graph.call_function(aten.add.Tensor, (part, 1.0))


class _Shapes(Interpreter):
    """Runs a graph and notes the shapes of all values."""

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = tuple(getattr(result, "shape", ()))
        return result


def _shape(node: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = node.meta.get("shape", ())
    return shape


def is_narrow(graph: GraphModule) -> bool:
    """Return whether the largest computed value has rows that fill half a vector at most."""
    computed = [_shape(node) for node in graph.graph.nodes if node.op == "call_function"]
    largest = max(computed, key=math.prod, default=())
    return len(largest) > 1 and largest[-1] <= NARROW
