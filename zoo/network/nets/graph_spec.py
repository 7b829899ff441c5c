"""Graph networks from mappings, as in a YAML configuration.

::

    net:
      edges:
        0-1: [[linear(8), tanh], [powers(3), linear(8)], zero]
        1-2: [linear(outputs)]
      aggregate: sum

An edge has a list of primitives; a primitive that is itself a list is a sequence of steps.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import nn

from zoo.errors import ConfigError, unknown_name
from zoo.network.nets.graph import Graph, check_aggregate, check_links, edge_name
from zoo.network.nets.primitives import SHAPELESS, Context, build_primitive, output_shape
from zoo.parsing.calls import short

KEYS = ("edges", "aggregate", "input")
#: Largest number of vertices.
MAX_VERTICES = 200

#: Primitives on the edges of a cell, as in DARTS but without normalisation.
CELL_PRIMITIVES: tuple[Any, ...] = (
    "zero",
    "identity",
    "max_pool",
    ["relu", "separable(kernel=3)"],
    ["relu", "conv(kernel=3)"],
)

#: The one-layer model with three primitives, from the simplest to the most flexible.
TOY: dict[str, Any] = {
    "edges": {
        "0-1": [
            "constant",
            ["linear(outputs)", "tanh"],
            ["powers(10)", "linear(outputs)", "tanh"],
        ]
    }
}


def graph_net(
    spec: Mapping[str, Any],
    num_inputs: int,
    num_outputs: int,
    image_shape: tuple[int, int, int] | None = None,
) -> nn.Module:
    """Build a network from a mapping, for the shapes of the data and the likelihood.

    The keys are ``edges``: lists of primitives by edge, see `zoo.network.nets.primitives`;
    ``aggregate``: aggregation of edges, for all vertices or by vertex; and ``input``: ``flat``, or
    ``image`` for rows that are images.
    """
    unknown = [key for key in spec if key not in KEYS]
    if unknown:
        raise unknown_name("key of a graph", str(unknown[0]), KEYS)
    lists = _edges(spec.get("edges"))
    links = sorted(lists, key=lambda edge: (edge[1], edge[0]))
    check_links(links)
    last = max(end for _, end in links)
    aggregate = check_aggregate(spec.get("aggregate", "sum"), last + 1)
    layers: list[nn.Module] = [nn.Flatten()]
    shapes: dict[int, tuple[int, ...]] = {0: (num_inputs,)}
    layout = spec.get("input", "flat")
    if layout == "image":
        if image_shape is None:
            raise ConfigError("'input: image' needs images, but the data have no image shape.")
        layers.append(nn.Unflatten(1, image_shape))
        shapes[0] = image_shape
    elif layout != "flat":
        raise ConfigError(f"'input' of a graph must be flat or image. Got {short(layout)}.")
    edges: dict[tuple[int, int], dict[str, nn.Module]] = {}
    for vertex in range(1, last + 1):
        arriving = {}
        for edge in links:
            if edge[1] == vertex:
                context = Context(shapes[edge[0]], num_outputs)
                edges[edge], arriving[edge] = _primitives(lists[edge], context, edge_name(edge))
        shapes[vertex] = _gathered(arriving, aggregate[vertex], vertex)
    if shapes[last] != (num_outputs,):
        raise ConfigError(
            f"the output of the graph, vertex {last}, has shape {shapes[last]}, but the likelihood "
            f"needs ({num_outputs},): end with linear(outputs)."
        )
    return nn.Sequential(*layers, Graph(edges, aggregate))


def _edges(source: Any) -> dict[tuple[int, int], list[Any]]:
    if not isinstance(source, Mapping) or not source:
        raise ConfigError(
            "a graph needs 'edges', a mapping like {'0-1': [linear(8), identity]}. "
            f"Got {short(source)}."
        )
    found = {}
    for name, primitives in source.items():
        pieces = str(name).split("-")
        if len(pieces) != 2 or not all(
            p.isascii() and p.isdigit() and len(p) < 5 and int(p) <= MAX_VERTICES for p in pieces
        ):
            raise ConfigError(
                f"an edge is named by two vertices from 0 to {MAX_VERTICES}, like '0-1'. "
                f"Got {short(name)}."
            )
        if isinstance(primitives, str):
            primitives = [primitives]
        if not isinstance(primitives, list | tuple) or not primitives:
            raise ConfigError(
                f"edge {name!r} needs a list of primitives, like [linear(8), identity]. "
                f"Got {short(primitives)}."
            )
        found[int(pieces[0]), int(pieces[1])] = list(primitives)
    return found


def _primitives(
    sources: list[Any], context: Context, edge: str
) -> tuple[dict[str, nn.Module], tuple[int, ...]]:
    """Build the primitives of an edge; those without a shape use that of the others."""
    built: dict[int, nn.Module] = {}
    shape: tuple[int, ...] | None = None
    for index, source in enumerate(sources):
        if source in SHAPELESS:
            continue
        built[index] = build_primitive(source, context, edge)
        leaving = output_shape(built[index], context.shape, f"edge {edge!r}")
        if shape is not None and leaving != shape:
            raise ConfigError(
                f"the primitives of edge {edge!r} differ in shape: {_text(source)} returns "
                f"{leaving}, the others {shape}."
            )
        shape = leaving
    same = Context(context.shape if shape is None else shape, context.num_outputs)
    names: dict[str, nn.Module] = {}
    for index, source in enumerate(sources):
        module = built[index] if index in built else build_primitive(source, same, edge)
        name = _text(source)
        names[f"{name} {index}" if name in names else name] = module
    return names, same.shape


def _text(source: Any) -> str:
    return " → ".join(source) if isinstance(source, list | tuple) else str(source)


def _gathered(
    arriving: Mapping[tuple[int, int], tuple[int, ...]], aggregation: str, vertex: int
) -> tuple[int, ...]:
    """Return the shape of a vertex."""
    shapes: list[tuple[int, ...]] = list(arriving.values())
    compared = slice(1 if aggregation == "concatenate" else 0, None)
    for first, second in pairwise(arriving):
        if arriving[first][compared] != arriving[second][compared]:
            raise ConfigError(
                f"vertex {vertex} cannot take the {aggregation} of edges {edge_name(first)!r} with "
                f"shape {arriving[first]} and {edge_name(second)!r} with shape {arriving[second]}."
            )
    if aggregation == "concatenate":
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return shapes[0]


def cell_spec(channels: int, nodes: int, cells: int) -> dict[str, Any]:
    """Return a network of cells for images, as in DARTS.

    A stem halves the image. In a cell every node sums edges from the cell input and from all
    previous nodes, each of them a mixture of `CELL_PRIMITIVES`. Nodes are concatenated, projected
    to the number of channels and, between cells, pooled. The positions of the last cell are
    averaged.
    """
    edges: dict[str, list[Any]] = {"0-1": [[f"conv({channels}, kernel=3, stride=2)"]]}
    aggregate: dict[int, str] = {}
    vertex = 1
    for cell in range(cells):
        first = vertex
        for node in range(first + 1, first + 1 + nodes):
            for source in range(first, node):
                edges[f"{source}-{node}"] = list(CELL_PRIMITIVES)
        joined = first + nodes + 1
        for node in range(first + 1, joined):
            edges[f"{node}-{joined}"] = ["identity"]
        aggregate[joined] = "concatenate"
        if cell < cells - 1:
            steps = ["relu", f"conv({channels}, kernel=1)", "max_pool(2, stride=2)"]
        else:
            steps = ["relu", "average", "linear(outputs)"]
        vertex = joined + 1
        edges[f"{joined}-{vertex}"] = [steps]
    return {"input": "image", "edges": edges, "aggregate": aggregate}
