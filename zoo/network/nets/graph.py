r"""Graph networks: vertices hold features, edges mix primitive functions.

With :math:`f_0(x) = x`, an edge :math:`(j, k)` has primitives :math:`g^{jk}_0, \dots, g^{jk}_{K-1}`
and weights :math:`\gamma^{jk}`, and a vertex aggregates its edges:

.. math::
    f_k(x) = \mathrm{agg}_k \Big( \sum_l \gamma^{jk}_l \, g^{jk}_l(f_j(x)) : j \in \mathrm{Adj}(k)
    \Big)

The weights are the structure of the network. A structure that is one-hot on every edge is an
ordinary architecture; all others are mixtures of architectures. An edge with a single primitive
has no choice.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from zoo.errors import ConfigError, unknown_name
from zoo.network.nets.architectures import ACTIVATIONS
from zoo.parsing.calls import short

#: Aggregations of the edges of a vertex.
AGGREGATIONS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "sum": lambda terms: torch.stack(terms).sum(0),
    "mean": lambda terms: torch.stack(terms).mean(0),
    "product": lambda terms: torch.stack(terms).prod(0),
    "concatenate": lambda terms: torch.cat(terms, dim=1),
}

Primitives: TypeAlias = "nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]"


class Mixed(nn.Module):
    r"""A mixture of primitives, :math:`\sum_l \gamma_l g_l(x)`.

    The weights are the buffer ``structure``, which is not trained. Methods with structure draw it;
    for all others it keeps its initial value, the mean of all primitives.

    Parameters
    ----------
    primitives
        The functions, by name or named after their classes.
    """

    structure: Tensor

    def __init__(self, primitives: Sequence[nn.Module] | Mapping[str, nn.Module]) -> None:
        super().__init__()
        if not primitives:
            raise ConfigError("an edge of a graph needs at least one primitive. Got none.")
        self.names: list[str]
        if isinstance(primitives, Mapping):
            self.names, modules = list(primitives), list(primitives.values())
        else:
            self.names, modules = [_class_name(g) for g in primitives], list(primitives)
        self.primitives = nn.ModuleList(modules)
        like = next(self.parameters(), torch.empty(()))
        self.register_buffer("structure", like.new_full((len(modules),), 1 / len(modules)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the primitives at ``x``."""
        weights = self.structure.unbind(-1)
        terms = [weight * g(x) for weight, g in zip(weights, self.primitives, strict=True)]
        return torch.stack(terms).sum(0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of every primitive."""
        return tuple(sum(p.numel() for p in g.parameters()) for g in self.primitives)


class Graph(nn.Module):
    """A network on a directed acyclic graph.

    Parameters
    ----------
    edges
        Primitives by edge ``(from, to)``: a module, or several modules that the edge mixes.
        Vertices are numbers; 0 is the input, the largest one is the output, and an edge leads from
        a smaller to a larger one.
    aggregate
        Aggregation of edges, one of ``AGGREGATIONS``: for all vertices, or by vertex (the others
        use the sum).

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> net = Graph({(0, 1): [nn.Linear(3, 2), nn.Linear(3, 2)], (1, 2): nn.ReLU()})
    >>> net(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        edges: Mapping[tuple[int, int], Primitives],
        aggregate: str | Mapping[int, str] = "sum",
    ) -> None:
        super().__init__()
        self.links = sorted(edges, key=lambda edge: (edge[1], edge[0]))
        check_links(self.links)
        self.num_vertices = max(to for _, to in self.links) + 1
        self.aggregate = check_aggregate(aggregate, self.num_vertices)
        self.edges = nn.ModuleDict({edge_name(e): _edge(edges[e]) for e in self.links})

    def forward(self, x: Tensor) -> Tensor:
        """Return the value of the last vertex."""
        values = {0: x}
        for vertex in range(1, self.num_vertices):
            terms = [
                self.edges[edge_name((start, end))](values[start])
                for start, end in self.links
                if end == vertex
            ]
            gather = AGGREGATIONS[self.aggregate[vertex]]
            values[vertex] = gather(terms) if len(terms) > 1 else terms[0]
        return values[self.num_vertices - 1]

    def select(self, choices: Mapping[str, int]) -> "Graph":
        """Return the architecture with one primitive on each of the given edges.

        ``choices`` are indices of primitives by name of the edge, such as ``0-1``.
        """
        chosen = copy.deepcopy(self)
        for name, index in choices.items():
            edge = chosen.edges[name] if name in chosen.edges else None
            if not isinstance(edge, Mixed):
                mixed = [key for key, module in chosen.edges.items() if isinstance(module, Mixed)]
                raise unknown_name("mixed edge", name, mixed)
            chosen.edges[name] = edge.primitives[index]
        return chosen


def _edge(primitives: Primitives) -> nn.Module:
    if isinstance(primitives, nn.Module):
        return primitives
    mixed = Mixed(primitives)
    return mixed if len(mixed.primitives) > 1 else mixed.primitives[0]


def _class_name(module: nn.Module) -> str:
    return type(module).__name__.lower()


def edge_name(edge: tuple[int, int]) -> str:
    """Return the name of an edge: ``0-1``."""
    return f"{edge[0]}-{edge[1]}"


def check_links(links: Sequence[tuple[int, int]]) -> None:
    """Reject edges that do not form a graph from vertex 0 to the last one."""
    if not links:
        raise ConfigError("a graph needs at least one edge, like '0-1'. Got none.")
    for start, end in links:
        if not 0 <= start < end:
            raise ConfigError(
                f"an edge leads from a smaller vertex to a larger one, like '0-1'. "
                f"Got {edge_name((start, end))!r}."
            )
    last = max(end for _, end in links)
    unreached = sorted(set(range(1, last + 1)) - {end for _, end in links})
    if unreached:
        raise ConfigError(f"no edge leads to vertex {unreached[0]}. Vertices: 0 to {last}.")
    unused = sorted(set(range(last)) - {start for start, _ in links})
    if unused:
        raise ConfigError(
            f"no edge leaves vertex {unused[0]}, so it has no effect. The output is {last}."
        )


def check_aggregate(source: Any, num_vertices: int) -> dict[int, str]:
    """Return the aggregation of every vertex but the input, from one name or names by vertex."""
    if isinstance(source, str):
        source = dict.fromkeys(range(1, num_vertices), source)
    if not isinstance(source, Mapping):
        raise ConfigError(
            f"'aggregate' is one of {', '.join(AGGREGATIONS)}, or a mapping from vertices to one. "
            f"Got {short(source)}."
        )
    # Keys of JSON are text.
    aggregate = {int(k) if str(k).isdigit() else k: word for k, word in source.items()}
    for vertex, word in aggregate.items():
        if vertex not in range(1, num_vertices):
            raise ConfigError(
                f"vertex {vertex!r} cannot aggregate: vertices with edges are 1 to "
                f"{num_vertices - 1}."
            )
        if word not in AGGREGATIONS:
            raise unknown_name("aggregation", str(word), AGGREGATIONS)
    return {vertex: aggregate.get(vertex, "sum") for vertex in range(1, num_vertices)}


def with_choices(net: nn.Module) -> nn.Module:
    """Return a network with mixtures: the same network, if it has mixtures already.

    In a plain `torch.nn.Sequential` every activation function becomes a mixture of itself, the
    identity and a hyperbolic tangent (or ReLU, if it is that already). The network is not modified,
    and its layers are shared. A network without activation functions is returned unchanged.
    """
    if not isinstance(net, nn.Sequential) or next(mixtures(net), None) is not None:
        return net
    return nn.Sequential(
        OrderedDict((name, _with_choices(layer)) for name, layer in net.named_children())
    )


def _with_choices(layer: nn.Module) -> nn.Module:
    if type(layer) not in ACTIVATIONS.values():
        return with_choices(layer)
    other = nn.ReLU() if isinstance(layer, nn.Tanh) else nn.Tanh()
    return Mixed([layer, nn.Identity(), other])


@dataclass(frozen=True)
class Choice:
    """An edge of a network with the names of its primitives; one for an edge without a choice.

    ``start`` and ``end`` are the vertices of a graph; in other networks, those of a chain.
    """

    module: str
    start: int
    end: int
    primitives: tuple[str, ...]


def mixtures(net: nn.Module) -> Iterator[tuple[str, Mixed]]:
    """Yield the mixtures of a network by name."""
    for name, module in net.named_modules():
        if isinstance(module, Mixed):
            yield name, module


def choices(net: nn.Module) -> list[Choice]:
    """Return the edges of a network with their primitives, for tables and plots."""
    if isinstance(net, nn.Sequential) and sum(isinstance(m, Graph) for m in net) == 1:
        name, graph = next((n, m) for n, m in net.named_children() if isinstance(m, Graph))
        return _graph_choices(graph, f"{name}.edges.")
    if isinstance(net, Graph):
        return _graph_choices(net, "edges.")
    return [
        Choice(name, index, index + 1, tuple(mixed.names))
        for index, (name, mixed) in enumerate(mixtures(net))
    ]


def _graph_choices(graph: Graph, prefix: str) -> list[Choice]:
    found = []
    for start, end in graph.links:
        module = graph.edges[edge_name((start, end))]
        names = module.names if isinstance(module, Mixed) else [_class_name(module)]
        found.append(Choice(prefix + edge_name((start, end)), start, end, tuple(names)))
    return found
