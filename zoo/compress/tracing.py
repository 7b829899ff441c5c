"""Trace a torch network to a `LayerGraph`.

The network is run once under ``make_fx`` with the values of its slots as inputs, which records
its operations. What does not depend on the rows (products of weights and scales, transposes,
statistics) is computed. The rest must be operations that `zoo.compress.loader` knows; a network
with others is refused. ``torch.export`` records the same operations in four to eight times the
time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from zoo.compress.graph import LayerGraph, LayerNode
from zoo.compress.operations import GraphBuilder, find_handler, unsupported
from zoo.errors import CompressionError
from zoo.infer.private_torch import schema_of

#: Rows for tracing, and for comparing the traced network with the original.
TRACED_ROWS = 3
CHECKED_ROWS = 8
#: Largest relative difference between the two, in float64.
ROUNDING = 1e-8

Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]


@torch.no_grad()
def trace(forward: Forward, values: Mapping[str, Tensor], row_shape: Sequence[int]) -> LayerGraph:
    """Return the graph of a network at some values of its slots, all in float64.

    Raises
    ------
    CompressionError
        If the network has operations that cannot be represented.
    """
    names = list(values)
    rows = next(iter(values.values())).new_zeros(TRACED_ROWS, *row_shape)

    def flat(*tensors: Tensor) -> Tensor:
        return forward(dict(zip(names, tensors[:-1], strict=True)), tensors[-1])

    try:
        recorded = make_fx(flat, pre_dispatch=True)(*values.values(), rows)
    except (RuntimeError, TypeError, ValueError) as error:
        raise CompressionError(
            f"the network cannot be traced: {str(error).splitlines()[0][:200]}"
        ) from None
    builder = GraphBuilder(row_shape, values)
    graph = builder.graph
    output = _GraphReader(recorded, builder).run(*values.values(), graph.input)
    if not isinstance(output, LayerNode) or output is graph.input:
        raise CompressionError("the network does not return a tensor computed from its rows.")
    graph.output = output
    graph.remove_unused()
    _compare(graph, lambda x: forward(values, x), rows)
    return graph


def _compare(graph: LayerGraph, forward: Callable[[Tensor], Tensor], rows: Tensor) -> None:
    """Check the graph against the network on other rows: tracing misses branches on data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CHECKED_ROWS, *rows.shape[1:], generator=generator, dtype=torch.float64)
    x = x.to(rows)
    try:
        wanted = forward(x)
        got = graph.network().to(x.device)(x)
    except (RuntimeError, ValueError) as error:
        raise CompressionError(
            f"the network works for {len(rows)} rows and not for {len(x)}: "
            f"{str(error).splitlines()[0][:200]}"
        ) from None
    largest = float((wanted - got).abs().max() / (1 + wanted.abs().max()))
    if not largest <= ROUNDING:
        raise CompressionError(
            f"the traced network differs from the original by {largest:.2g} on other rows. "
            "Branches that depend on the data cannot be compressed."
        )


class _GraphReader(fx.Interpreter):
    """Runs a recorded network, with nodes in place of values that depend on the rows."""

    def __init__(self, recorded: fx.GraphModule, builder: GraphBuilder) -> None:
        super().__init__(recorded)
        self.builder = builder
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        """Compute what is constant, and append a node for the rest."""
        depends = any(isinstance(self.env[source], LayerNode) for source in n.all_input_nodes)
        if n.op != "call_function" or not depends:
            return super().run_node(n)
        target: Any = n.target
        packet = getattr(target, "overloadpacket", None)
        kind = "" if packet is None else packet.__name__.rstrip("_")
        handler, meta = find_handler(kind), n.meta.get("tensor_meta")
        if handler is None or meta is None:
            raise unsupported(f"the operation {target}")
        if len(meta.shape) < 2 or meta.shape[0] != TRACED_ROWS:
            raise unsupported(f"{kind} that mixes rows or removes the last dimension of a row")
        positional, keywords = self.fetch_args_kwargs_from_env(n)
        schema = schema_of(target).arguments
        arguments = {a.name: a.default_value for a in schema if a.has_default_value()}
        arguments |= {a.name: value for a, value in zip(schema, positional, strict=False)}
        arguments |= keywords
        if isinstance(arguments.get("dim"), int):
            arguments["dim"] %= len(meta.shape)
        return handler(self.builder, arguments, tuple(meta.shape[1:]))
