r"""Coordinates in which hierarchical normal sites are easy to sample.

A site :math:`z \sim N(\mu, s^2)` with a random scale :math:`s` has a funnel if the data say little
about it; its non-centred form :math:`z = \mu + s e`, :math:`e \sim N(0, 1)`, has one if they say
much. The coordinates here adapt to a pilot chain, for each element and for each value of the scale,
and do not change the posterior. They are the same for both forms of a model: a standard normal site
that is only multiplied by other latent sites is recognised as non-centred (`find_factors`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.transforms import Transform
from torch import Tensor
from torch.distributions import AffineTransform, Independent, Normal, biject_to
from torch.fx import Graph, GraphModule, Node

from zoo.infer.private_torch import schema_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Hint:
    r"""What the rest of a model says about a normal site, as a normal :math:`N(m, \lambda^{-1})`.

    A precision of zero means nothing. If the model multiplies the site by a factor, the hint is
    about the product.
    """

    centre: Tensor
    precision: Tensor


def site_transform(
    distribution: Any, hint: Hint | None = None, factor: Tensor | float = 1.0
) -> Transform:
    r"""Return the bijection from real space onto the support of a site.

    With a hint :math:`(m, \lambda)`, a site :math:`z \sim N(\mu, s^2)` that the model uses as
    :math:`cz` is written as

    .. math::
        z = \mu + \frac{\lambda c s^2}{1 + w} (m - c \mu) + \frac{s}{\sqrt{1 + w}}\, u,
        \qquad w = \lambda c^2 s^2,

    so that :math:`u` is a standard normal under :math:`N(z; \mu, s^2) N(cz; m, \lambda^{-1})`.
    This is the non-centred parameterisation where the prior is narrow, the centred one where the
    data are informative (Papaspiliopoulos, Roberts and Sköld 2007), and between them otherwise, for
    each element and each value of :math:`s` and :math:`c`.
    """
    normal = normal_base(distribution)
    if hint is None or normal is None:
        bijection: Transform = biject_to(distribution.support)
        return bijection
    pull = hint.precision * factor * normal.scale**2
    weight = pull * factor
    centre = normal.loc + (hint.centre - factor * normal.loc) * pull / (1 + weight)
    return AffineTransform(centre, normal.scale / torch.sqrt(1 + weight))


def normal_base(distribution: Any) -> Normal | None:
    """Return the normal distribution inside a distribution, if there is one."""
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution if isinstance(distribution, Normal) else None


def regress(values: Tensor, slopes: Tensor) -> Hint:
    r"""Return the hint from draws, one per row, and gradients of the rest of the model there.

    The regression of the gradient on the value has the slope :math:`-\lambda` and is zero at
    :math:`m`, element by element.
    """
    deviations = values - values.mean(0)
    covariance = (deviations * slopes).mean(0)
    precision = (-covariance / (deviations**2).mean(0)).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
    known = precision > 0
    shift = torch.where(known, slopes.mean(0) / torch.where(known, precision, 1.0), 0.0)
    return Hint(values.mean(0) + shift, precision)


@dataclass(frozen=True)
class Factor:
    """The function of earlier sites by which a model multiplies a site."""

    sites: tuple[str, ...]
    function: Callable[..., Tensor]

    def __call__(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the factor at the values of the other sites."""
        return self.function(*(values[name] for name in self.sites))


def find_factors(
    graph: GraphModule, names: Sequence[str], candidates: Sequence[str]
) -> dict[str, Factor]:
    """Find the candidates that a model uses only as products with functions of earlier sites.

    The graph is the recorded log density of all sites but the candidates; its arguments are the
    named sites, in the order of the program.
    """
    inputs = dict(zip(names, graph.graph.find_nodes(op="placeholder"), strict=True))
    found = {}
    for name in candidates:
        multipliers = _multipliers(inputs[name])
        needed = _ancestors([node for node, _ in multipliers])
        sites = tuple(site for site in names if inputs[site] in needed)
        earlier = names[: names.index(name)]
        if sites and set(sites) <= set(earlier) and not _are_changed(needed):
            found[name] = Factor(sites, _product(graph, inputs, sites, multipliers))
    return found


def _multipliers(node: Node) -> list[tuple[Node, bool]]:
    """Return the nodes that a node is first multiplied by, or divided by (True)."""
    shape = node.meta["val"].shape
    found: list[tuple[Node, bool]] = []
    while len(node.users) == 1:
        (user,) = node.users
        is_quotient = user.target is aten.div.Tensor and user.args[0] is node
        if not (is_quotient or user.target is aten.mul.Tensor) or user.meta["val"].shape != shape:
            break
        others = [argument for argument in user.args if argument is not node]
        if len(others) != 1 or not isinstance(others[0], Node):
            break
        found.append((others[0], is_quotient))
        node = user
    return found


def _ancestors(nodes: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _are_changed(nodes: set[Node]) -> bool:
    """Return whether one of the values is modified after it was computed."""
    return any(
        getattr(schema_of(user.target), "is_mutable", False)
        for node in nodes
        for user in node.users
    )


def _product(
    graph: GraphModule,
    inputs: Mapping[str, Node],
    sites: Sequence[str],
    multipliers: Sequence[tuple[Node, bool]],
) -> GraphModule:
    """Return the product of multipliers as a function of sites."""
    needed = _ancestors([node for node, _ in multipliers])
    product = Graph()
    copies = {inputs[site]: product.placeholder(f"site_{i}") for i, site in enumerate(sites)}
    for node in graph.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = product.node_copy(node, copies.__getitem__)
    result = product.call_function(aten.ones_like.default, (copies[multipliers[0][0]],))
    for node, is_quotient in multipliers:
        operation = aten.div.Tensor if is_quotient else aten.mul.Tensor
        result = product.call_function(operation, (result, copies[node]))
    product.output(result)
    return GraphModule(graph, product)
