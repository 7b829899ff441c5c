r"""The log joint density of any Pyro model as a function of one flat real vector.

Samplers move in :math:`\mathbb{R}^d`. Every latent site :math:`i` gets a slice :math:`u_i` of the
vector and a bijection :math:`z_i = T_i(u_i)` onto its support, and the density is that of
:math:`u`:

.. math:: \log p(u) = \log p(y, T(u)) + \sum_i \log |\det T_i'(u_i)|

The bijection is Pyro's `biject_to`, except for normal sites whose location or scale is itself
random, which may be whitened (see `site_transform`). Sites are transformed in the order of the
program, so a bijection may depend on the sites before it.

Value and gradient are recorded once with `make_fx`, without Pyro, and compiled.
"""

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from pyro.distributions.transforms import Transform
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import AffineTransform, Independent, Normal, biject_to
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from zoo.errors import ZooError
from zoo.infer.capture import CANNOT, cause_of
from zoo.infer.rng import seeded

Array = NDArray[np.float64]

#: Draws that are transformed at a time.
_CHUNK = 1024


@dataclass(frozen=True)
class Hint:
    r"""What the rest of a model says about a normal site, as a normal :math:`N(m, \lambda^{-1})`.

    A precision of zero says nothing.
    """

    centre: Tensor
    precision: Tensor


def site_transform(distribution: Any, hint: Hint | None = None) -> Transform:
    r"""Return the bijection from real space onto the support of a site.

    With a hint :math:`(m, \lambda)`, a site :math:`z \sim N(\mu, s^2)` is written as

    .. math::
        z = \mu + \frac{w}{1 + w} (m - \mu) + \frac{s}{\sqrt{1 + w}}\, u,
        \qquad w = \lambda s^2,

    so that :math:`u` is a standard normal under :math:`N(z; \mu, s^2) N(z; m, \lambda^{-1})`. Where
    the prior is narrow this is the non-centred parameterisation, where the data are informative
    the centred one (Papaspiliopoulos, Roberts and Sköld 2007), with all that is between, for each
    element and each value of :math:`s`.
    """
    normal = _normal_base(distribution)
    if hint is None or normal is None:
        bijection: Transform = biject_to(distribution.support)
        return bijection
    weight = hint.precision * normal.scale**2
    centre = normal.loc + (hint.centre - normal.loc) * weight / (1 + weight)
    return AffineTransform(centre, normal.scale / torch.sqrt(1 + weight))


def _normal_base(distribution: Any) -> Normal | None:
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution if isinstance(distribution, Normal) else None


@dataclass(frozen=True)
class Site:
    """A latent site: its shape in the model and in the flat vector, and its support."""

    name: str
    shape: tuple[int, ...]
    unconstrained_shape: tuple[int, ...]
    support: str

    @property
    def size(self) -> int:
        """Number of unconstrained coordinates."""
        return math.prod(self.unconstrained_shape)


class _FromFlat(Messenger):
    """Gives latent sites the values that a flat vector stands for, and adds up the Jacobians."""

    def __init__(self, sites: Sequence[Site], flat: Tensor, hints: Mapping[str, Hint]) -> None:
        super().__init__()
        self.hints = hints
        pieces = flat.split([site.size for site in sites])
        self.pieces = {
            site.name: piece.reshape(site.unconstrained_shape)
            for site, piece in zip(sites, pieces, strict=True)
        }
        self.values: dict[str, Tensor] = {}
        self.log_jacobian = flat.new_zeros(())

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        piece = self.pieces.get(msg["name"])
        if piece is None:
            return
        transform = site_transform(msg["fn"], self.hints.get(msg["name"]))
        value = transform(piece)
        jacobian = transform.log_abs_det_jacobian(piece, value)
        self.log_jacobian = self.log_jacobian + jacobian.sum()
        self.values[msg["name"]] = value
        msg["value"], msg["done"] = value, True


class _ToFlat(Messenger):
    """Gives latent sites their values, and notes the unconstrained ones."""

    def __init__(self, values: Mapping[str, Tensor], hints: Mapping[str, Hint]) -> None:
        super().__init__()
        self.values, self.hints = values, hints
        self.pieces: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.values:
            value = self.values[msg["name"]]
            transform = site_transform(msg["fn"], self.hints.get(msg["name"]))
            self.pieces[msg["name"]] = transform.inv(value).reshape(-1)
            msg["value"], msg["done"] = value, True


class LogDensity:
    """The unconstrained log joint density of a Pyro model with continuous latent sites.

    The model runs in float64: tensors among the arguments are converted, a model that is a module
    is copied, converted and put in evaluation mode. Its parameters are constants, as are the data.

    Parameters
    ----------
    model
        Any Pyro model.
    args, kwargs
        What it is called with, the observations among them.
    hints
        For normal sites, what the rest of the model says about them; such sites are whitened.

    Raises
    ------
    ZooError
        If a latent site is discrete, if data are subsampled, if there is no latent site, or if the
        model cannot be run.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        hints: Mapping[str, Hint] | None = None,
    ) -> None:
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self.model = model
        self.args: tuple[Any, ...] = pytree.tree_map(_double, tuple(args))
        self.kwargs: dict[str, Any] = pytree.tree_map(_double, dict(kwargs or {}))
        self.hints = dict(hints or {})
        with self._running(), InitMessenger(_first_value):
            trace = poutine.trace(self.model).get_trace(*self.args, **self.kwargs)
        #: The sites of the first run; what a hash of the model is made of.
        self.trace = trace
        self.sites = tuple(_latent_sites(trace))
        self.size = sum(site.size for site in self.sites)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the constrained values by site."""
        return {site.name: site.shape for site in self.sites}

    def __call__(self, flat: Tensor) -> Tensor:
        """Return the log density at a flat vector; differentiable."""
        return self._evaluate(flat)[0]

    def _evaluate(self, flat: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        handler = self._handler(flat)
        with self._running():
            with handler:
                trace = poutine.trace(self.model).get_trace(*self.args, **self.kwargs)
            joint = trace.log_prob_sum()
        return joint + handler.log_jacobian, handler.values

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with pyro.validation_enabled(False), seeded(0, torch.device("cpu")):
                yield
        except CANNOT as error:
            if isinstance(error, ZooError):
                raise
            raise _CannotRunError(
                f"the model cannot be run in float64: {cause_of(error)}"
            ) from error
        finally:
            torch.set_default_dtype(default)

    def pack(self, values: Mapping[str, Any]) -> Tensor:
        """Return the flat vector of constrained values by site.

        Raises
        ------
        ZooError
            If a site is missing, unknown, or of another shape.
        """
        if set(values) != set(self.shapes):
            raise ZooError(
                f"values are needed for the sites {sorted(self.shapes)}. Got {sorted(values)}."
            )
        tensors = {k: torch.as_tensor(v, dtype=torch.float64) for k, v in values.items()}
        for name, value in tensors.items():
            if tuple(value.shape) != self.shapes[name]:
                raise ZooError(
                    f"site {name!r} has shape {self.shapes[name]}. Got {tuple(value.shape)}."
                )
        handler = _ToFlat(tensors, self.hints)
        with torch.no_grad(), self._running(), handler:
            self.model(*self.args, **self.kwargs)
        return torch.cat([handler.pieces[site.name] for site in self.sites])

    def unpack(self, flat: Tensor | Array) -> dict[str, Array]:
        """Return constrained values by site; leading dimensions of ``flat`` are kept."""
        points = torch.as_tensor(flat, dtype=torch.float64)
        batch = points.shape[:-1]
        rows = points.reshape(-1, self.size)
        columns = self._constrain_rows(rows)
        return {
            name: column.reshape((*batch, *self.shapes[name])).numpy()
            for name, column in columns.items()
        }

    def _constrain_rows(self, rows: Tensor) -> dict[str, Tensor]:
        def constrain(flat: Tensor) -> dict[str, Tensor]:
            return self._evaluate(flat)[1]

        with torch.no_grad():
            try:
                # Recorded without what is not needed for the values: the likelihood.
                graph = _record(constrain, torch.zeros(self.size, dtype=torch.float64))
                chunks = [torch.vmap(graph)(chunk) for chunk in rows.split(_CHUNK)]
                return {s.name: torch.cat([c[s.name] for c in chunks]) for s in self.sites}
            except CANNOT:
                singles = [constrain(row) for row in rows]
                return {s.name: torch.stack([v[s.name] for v in singles]) for s in self.sites}

    def with_hints(self, hints: Mapping[str, Hint]) -> "LogDensity":
        """Return the same density in other coordinates."""
        other = copy.copy(self)
        other.hints = dict(hints)
        return other

    def random_normals(self) -> tuple[str, ...]:
        """Return the normal sites whose location or scale depends on other latent sites."""
        rng = np.random.default_rng(0)
        traces = [self._trace_at(rng.uniform(-1, 1, self.size)) for _ in range(2)]

        def moves(name: str) -> bool:
            normals = [_normal_base(trace.nodes[name]["fn"]) for trace in traces]
            first, second = normals
            if first is None or second is None:
                return False
            return not (
                torch.equal(first.loc, second.loc) and torch.equal(first.scale, second.scale)
            )

        return tuple(site.name for site in self.sites if moves(site.name))

    def _trace_at(self, flat: Array) -> Any:
        with torch.no_grad(), self._running(), self._handler(torch.from_numpy(flat)):
            return poutine.trace(self.model).get_trace(*self.args, **self.kwargs)

    def estimate_hints(self, draws: Array, names: Sequence[str]) -> dict[str, Hint]:
        r"""Estimate from draws what the rest of the model says about normal sites.

        With :math:`g` the gradient of the log joint in a site's value without the site's own prior,
        the regression of :math:`g` on the value has the slope :math:`-\lambda` and is zero at
        :math:`m`, element by element.

        Parameters
        ----------
        draws
            Flat vectors, one per row.
        names
            Normal sites.
        """
        values = self.unpack(draws)
        slopes: dict[str, list[Tensor]] = {name: [] for name in names}
        for row in range(len(draws)):
            given = {name: torch.from_numpy(np.array(v[row])) for name, v in values.items()}
            for name, slope in zip(names, self._rest_gradients(given, names), strict=True):
                slopes[name].append(slope)
        return {
            name: _regress(torch.from_numpy(values[name]), torch.stack(slopes[name]))
            for name in names
        }

    def _rest_gradients(self, values: dict[str, Tensor], names: Sequence[str]) -> list[Tensor]:
        leaves = [values[name].requires_grad_() for name in names]
        with self._running():
            conditioned = poutine.condition(self.model, data=values)
            trace = poutine.trace(conditioned).get_trace(*self.args, **self.kwargs)
            joint = torch.as_tensor(trace.log_prob_sum())
            gradients = torch.autograd.grad(joint, leaves)
        rest = []
        for name, leaf, gradient in zip(names, leaves, gradients, strict=True):
            normal = _normal_base(trace.nodes[name]["fn"])
            assert normal is not None
            rest.append((gradient + (leaf - normal.loc) / normal.scale**2).detach())
        return rest

    def _handler(self, flat: Tensor) -> _FromFlat:
        return _FromFlat(self.sites, flat, self.hints)

    def capture(self) -> GraphModule:
        """Record value and gradient as a flat graph that needs neither Pyro nor the model.

        The graph can be pickled; data are constants in it.
        """
        gradient = torch.func.grad_and_value(self._evaluate, has_aux=True)

        def value_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
            slope, (value, _) = gradient(flat)
            return value, slope

        # Not at zero, where a density may happen to have a kink.
        return _record(value_and_gradient, torch.full((self.size,), 0.1, dtype=torch.float64))

    def eager(self, flat: Array) -> tuple[float, Array]:
        """Return value and gradient by running the model under autograd."""
        leaf = torch.from_numpy(np.array(flat)).requires_grad_()
        value = self(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        return value.item(), slope.numpy()


class _CannotRunError(ZooError):
    """A model that fails when it is called; the message has the cause."""


def _regress(values: Tensor, slopes: Tensor) -> Hint:
    deviations = values - values.mean(0)
    covariance = (deviations * slopes).mean(0)
    precision = (-covariance / (deviations**2).mean(0)).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
    known = precision > 0
    shift = torch.where(known, slopes.mean(0) / torch.where(known, precision, 1.0), 0.0)
    return Hint(values.mean(0) + shift, precision)


def _record(function: Callable[[Tensor], Any], example: Tensor) -> GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about what is being recorded
        recorded = make_fx(function)(example)
    # A plain graph: one that remembers how it was recorded cannot be read in another process.
    plain = Graph()
    plain.output(plain.graph_copy(recorded.graph, {}))
    plain.eliminate_dead_code()
    return GraphModule(recorded, plain)


def _first_value(site: Mapping[str, Any]) -> Tensor:
    """Draw a site from its prior. A flat one has no draws: any value of its support will do."""
    try:
        value: Tensor = site["fn"]()
    except NotImplementedError:
        bijection = biject_to(site["fn"].support)
        value = bijection(torch.zeros(bijection.inverse_shape(site["fn"].shape())))
    return value


def _latent_sites(trace: Any) -> Iterator[Site]:
    found = False
    for name, node in trace.nodes.items():
        if node["type"] != "sample":
            continue
        if site_is_subsample(node):
            taken = len(node["value"])
            if taken < node["fn"].size:
                raise ZooError(
                    f"plate {name!r} subsamples {taken} of {node['fn'].size} rows, so the density "
                    "is not that of the posterior. Call the model with all rows."
                )
            continue
        if node["is_observed"]:
            continue
        support = node["fn"].support
        if support is None or support.is_discrete or node["infer"].get("enumerate"):
            raise ZooError(
                f"latent site {name!r} ({type(node['fn']).__name__}) is discrete. Only continuous "
                "sites have a gradient: sum it out in the model."
            )
        found = True
        shape = tuple(node["value"].shape)
        flat_shape = tuple(biject_to(support).inverse_shape(node["value"].shape))
        yield Site(name, shape, flat_shape, str(support))
    if not found:
        raise ZooError("the model has no latent site: there is nothing to sample.")


def _double(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double()
    return value
