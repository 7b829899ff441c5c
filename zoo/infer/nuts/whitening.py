r"""Coordinates in which hierarchical normal sites are easy to sample.

A site :math:`z \sim N(\mu, s^2)` with a random scale :math:`s` has a funnel if the data say little
about it; its non-centred form :math:`z = \mu + s e`, :math:`e \sim N(0, 1)`, has one if they say
much. The coordinates here adapt to a pilot chain, for each element and for each value of the scale,
and do not change the posterior. They are the same for both forms of a model: a standard normal site
that is only multiplied by other latent sites is recognised as non-centred (`find_factors`).

Multivariate normal sites with a random covariance, as of a Gaussian process, are treated alike, and
so is a normal vector that is multiplied by a random matrix, such as a Cholesky factor.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.transforms import Transform
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Independent,
    MultivariateNormal,
    Normal,
    biject_to,
    constraints,
)
from torch.fx import Graph, GraphModule, Node

from zoo.distributions.smooth_log_uniform import SmoothLogUniform
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
    distribution: Any,
    hint: Hint | None = None,
    factor: Tensor | float = 1.0,
    *,
    flatten: bool = False,
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
    each element and each value of :math:`s` and :math:`c`. For a site
    :math:`z \sim N(\mu, SS^\top)` that is used as :math:`Az`, with :math:`B = AS`,
    :math:`\Lambda = \mathrm{diag}(\lambda)` and a Cholesky factor :math:`C` of
    :math:`I + B^\top \Lambda B`, it is

    .. math:: z = \mu + S C^{-\top} \left(u + C^{-1} B^\top \Lambda (m - A\mu)\right).

    With `flatten`, a smooth log-uniform site is :math:`z = e^a \sinh u`: its density, a spike of
    width :math:`e^a` at zero with tails of :math:`1/|z|`, is nearly constant in :math:`u`.
    """
    normal = normal_base(distribution)
    if flatten and is_log_uniform(distribution):
        return _Sinh(_base(distribution).low.exp())
    if hint is None or normal is None:
        bijection: Transform = biject_to(support_of(distribution))
        return bijection
    if isinstance(normal, MultivariateNormal) or is_matrix(factor, hint):
        return _matrix_transform(normal, hint, factor)
    pull = hint.precision * factor * normal.scale**2
    weight = pull * factor
    centre = normal.loc + (hint.centre - factor * normal.loc) * pull / (1 + weight)
    return AffineTransform(centre, normal.scale / torch.sqrt(1 + weight))


def support_of(distribution: Any) -> Any:
    """Return the support of a distribution; that of a mixture is the support of its components."""
    support = distribution.support
    return getattr(support, "base_constraint", support) if _is_mixture(support) else support


def _is_mixture(support: Any) -> bool:
    return type(support).__name__ == "MixtureSameFamilyConstraint"  # not public in torch


def normal_base(distribution: Any) -> Normal | MultivariateNormal | None:
    """Return the normal distribution inside a distribution, if there is one."""
    base = _base(distribution)
    return base if isinstance(base, Normal | MultivariateNormal) else None


def is_log_uniform(distribution: Any) -> bool:
    """Return whether a distribution is a smooth log-uniform one."""
    return isinstance(_base(distribution), SmoothLogUniform)


def _base(distribution: Any) -> Any:
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution


class _Sinh(Transform):
    """The map u -> scale sinh(u)."""

    domain = constraints.real
    codomain = constraints.real
    bijective = True

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def _call(self, x: Tensor) -> Tensor:
        return self.scale * torch.sinh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.asinh(y / self.scale)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log(scale cosh(x)), also where cosh overflows."""
        return self.scale.log() + x.abs() + torch.log1p(torch.exp(-2 * x.abs())) - math.log(2)


def spread_of(normal: Normal | MultivariateNormal) -> Tensor:
    """Return the scale of a normal, or the Cholesky factor of its covariance."""
    spread: Tensor = normal.scale if isinstance(normal, Normal) else normal.scale_tril
    return spread


def is_matrix(factor: Tensor | float, hint: Hint) -> bool:
    """Return whether a factor is a matrix that multiplies vectors of the hint's shape."""
    return isinstance(factor, Tensor) and factor.dim() > hint.centre.dim()


def apply_factor(factor: Tensor | float, value: Tensor) -> Tensor:
    """Return what a model makes of a site: a product with numbers or with a matrix."""
    if isinstance(factor, Tensor) and factor.dim() > value.dim():
        return factor @ value
    return value * factor


def slope_of_product(factor: Tensor | float, slope: Tensor) -> Tensor:
    """Return the gradient with respect to a product from that with respect to a site."""
    if isinstance(factor, Tensor) and factor.dim() > slope.dim():
        solved: Tensor = torch.linalg.solve(factor.mT, slope)
        return solved
    return slope / factor


class _MatrixAffine(Transform):
    """The map u -> loc + matrix u of vectors, with a known log determinant."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, matrix: Tensor, log_determinant: Tensor) -> None:
        super().__init__()
        self.loc, self.matrix, self.log_determinant = loc, matrix, log_determinant

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + (self.matrix @ x.unsqueeze(-1)).squeeze(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve(self.matrix, (y - self.loc).unsqueeze(-1)).squeeze(-1)
        return solved

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_determinant


def _matrix_transform(
    normal: Normal | MultivariateNormal, hint: Hint, factor: Tensor | float
) -> Transform:
    """Return the coordinates of a vector with a random covariance or matrix factor."""
    size = hint.centre.shape[-1]
    loc = normal.loc.expand(hint.centre.shape)
    spread = spread_of(normal)
    if isinstance(normal, Normal):
        spread = torch.diag_embed(spread.expand(loc.shape))
    product = factor @ spread if isinstance(factor, Tensor) else spread
    weighted = hint.precision.unsqueeze(-1) * product
    unit = torch.eye(size, dtype=loc.dtype)
    root = torch.linalg.cholesky(unit + product.mT @ weighted)
    # G = C^{-1} S', and the pull is C^{-1} B' L (m - A mu).
    turned = torch.linalg.solve_triangular(root, spread.mT, upper=False)
    misfit = hint.centre - (apply_factor(factor, loc) if isinstance(factor, Tensor) else loc)
    pull = torch.linalg.solve_triangular(root, weighted.mT @ misfit.unsqueeze(-1), upper=False)
    centre = loc + (turned.mT @ pull).squeeze(-1)
    logs = spread.diagonal(dim1=-2, dim2=-1).log() - root.diagonal(dim1=-2, dim2=-1).log()
    return _MatrixAffine(centre, turned.mT, logs.sum(-1))


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


def _multipliers(node: Node) -> list[tuple[Node, Any]]:
    """Return the nodes that a node is first multiplied by, with the operations.

    A matrix can only be the first of them.
    """
    shape = node.meta["val"].shape
    found: list[tuple[Node, Any]] = []
    while len(node.users) == 1:
        (user,) = node.users
        place = _OPERAND.get(user.target)
        if place is None or user.meta["val"].shape != shape:
            break
        if user.target is aten.mv.default and found:
            break
        if place >= 0 and user.args[place] is not node:
            break
        others = [argument for argument in user.args if argument is not node]
        if len(others) != 1 or not isinstance(others[0], Node):
            break
        found.append((others[0], user.target))
        node = user
    return found


#: Products, and which of their arguments must be the site; -1 for any.
_OPERAND: dict[Any, int] = {aten.mul.Tensor: -1, aten.div.Tensor: 0, aten.mv.default: 1}


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
    multipliers: Sequence[tuple[Node, Any]],
) -> GraphModule:
    """Return the product of multipliers as a function of sites."""
    needed = _ancestors([node for node, _ in multipliers])
    product = Graph()
    copies = {inputs[site]: product.placeholder(f"site_{i}") for i, site in enumerate(sites)}
    for node in graph.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = product.node_copy(node, copies.__getitem__)
    first, operation = multipliers[0]
    is_matrix = operation is aten.mv.default
    result = copies[first]
    if not is_matrix:
        result = product.call_function(aten.ones_like.default, (result,))
    for node, operation in multipliers[is_matrix:]:
        other = copies[node]
        if is_matrix:  # numbers multiply its rows
            other = product.call_function(aten.unsqueeze.default, (other, -1))
        result = product.call_function(operation, (result, other))
    product.output(result)
    return GraphModule(graph, product)
