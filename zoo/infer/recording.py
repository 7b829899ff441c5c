"""Record a function of tensors as a flat list of operations.

A function is run once under `make_fx`. The recorded operations are replayed one by one, or compiled
by Inductor. An eager replay runs the same operations in the same order with the same random
numbers, so its result is bitwise that of the function. Inductor rounds differently.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from zoo.infer.private_torch import PrivateNameError, compile_graph, record_graph

Backend = Literal["replay", "inductor"]
Mode = Literal["auto", "off", "replay", "inductor"]

#: Errors raised by models that cannot be recorded.
CANNOT = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)


def cause_of(error: Exception) -> str:
    """Return the type of an error and the first non-empty line of its message."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def record(function: Callable[..., Any], *inputs: Any, backend: Backend) -> Callable[..., Any]:
    """Run a function once, and return its operations as a function, replayed or compiled.

    The function takes tensors, or lists and mappings of them; other tensors that it uses are
    constants. ``inputs`` are examples: later arguments must have the same shapes.
    """
    leaves = _leaves(inputs)

    def flat(*leaves: Any) -> Any:
        rest = iter(leaves)
        return function(*_mapped(lambda _: next(rest), inputs))

    with torch.random.fork_rng():  # recording must not change the random state
        graph = record_graph(flat, leaves)
    _drop_detachments(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    run = graph if backend == "replay" else _compiled(graph, leaves)
    return lambda *inputs: run(*_leaves(inputs))


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of nested tuples, lists and mappings, in order."""
    if isinstance(value, Mapping):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_mapped(function, item) for item in value)
    return function(value)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(found.append, value)
    return found


def _compiled(graph: GraphModule, leaves: list[Any]) -> Callable[..., Any]:
    """Compile a recorded graph, or return it if this release of torch is not supported."""
    # The generator of the CPU is fast; Inductor's own is made for GPUs.
    on_cpu = all(leaf.device.type == "cpu" for leaf in leaves if isinstance(leaf, Tensor))
    _keep_products_apart(graph)
    try:
        return compile_graph(graph, leaves, fallback_random=on_cpu)
    except PrivateNameError as error:
        warnings.warn(f"recorded operations are replayed one by one: {error}", stacklevel=3)
        return graph


def _drop_detachments(graph: GraphModule) -> None:
    """Remove operations that stop gradients: a recorded graph is run without gradients."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if any(user.op == "output" for user in node.users):
            continue  # a result must not be an input
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)


def _keep_products_apart(graph: GraphModule) -> None:
    """Write the sum of a matrix product and another matrix as a difference, bitwise the same.

    Gradients are such sums (data term plus divergence). Inductor fuses the sum into the product,
    which copies the summand first; a difference is fused into the loop that follows.
    """
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        pair = [argument for argument in node.args if isinstance(argument, Node)]
        if len(pair) != 2 or node.kwargs or not any(map(_is_product, pair)):
            continue
        product, other = pair if _is_product(pair[0]) else reversed(pair)
        with graph.graph.inserting_before(node):
            negative = graph.graph.call_function(torch.ops.aten.neg.default, (product,))
            difference = graph.graph.call_function(torch.ops.aten.sub.Tensor, (other, negative))
        for made, source in ((negative, product), (difference, node)):
            made.meta = dict(source.meta)
        node.replace_all_uses_with(difference)
        graph.graph.erase_node(node)
    graph.recompile()


def _is_product(node: Node) -> bool:
    """Return whether a node is a matrix product or its transpose."""
    while node.target is torch.ops.aten.t.default:
        (node,) = node.all_input_nodes
    return node.target is torch.ops.aten.mm.default
