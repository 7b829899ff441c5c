r"""The log joint density of any Pyro model as a function of one flat real vector.

Every latent site :math:`i` has a slice :math:`u_i` of the vector and a bijection
:math:`z_i = T_i(u_i)` onto its support. The density is that of :math:`u`:

.. math:: \log p(u) = \log p(y, T(u)) + \sum_i \log |\det T_i'(u_i)|

The bijection is Pyro's `biject_to`, except for hierarchical normal sites, which may be whitened
(see `zoo.infer.nuts.whitening`). Sites are transformed in the order of the program, so a bijection
may depend on the sites before it.

Value and gradient are recorded once with `make_fx`, without Pyro, and compiled.
"""

import contextlib
import copy
import functools
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
from torch.distributions import Normal, biject_to
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from zoo.errors import ZooError
from zoo.infer.nuts.native import nan_if_singular
from zoo.infer.nuts.whitening import (
    Factor,
    Hint,
    apply_factor,
    find_factors,
    is_log_uniform,
    normal_base,
    regress,
    site_transform,
    slope_of_product,
    spread_of,
    support_of,
)
from zoo.infer.recording import CANNOT, cause_of
from zoo.infer.rng import seeded

Array = NDArray[np.float64]

#: Draws that are transformed at a time.
_CHUNK = 1024
#: Largest number of elements of one tensor when many densities are computed at a time.
MAX_ELEMENTS = 2**22


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


#: Chooses the bijection of a site, given the values of the sites before it.
_Choice = Callable[[Mapping[str, Any], Mapping[str, Tensor]], Transform]


class _FromFlat(Messenger):
    """Sets latent sites to the values of a flat vector, and adds up the log Jacobians."""

    def __init__(self, sites: Sequence[Site], flat: Tensor, choose: _Choice) -> None:
        super().__init__()
        self.choose = choose
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
        transform = self.choose(msg, self.values)
        value = transform(piece)
        jacobian = transform.log_abs_det_jacobian(piece, value)
        self.log_jacobian = self.log_jacobian + jacobian.sum()
        self.values[msg["name"]] = value
        msg["value"], msg["done"] = value, True


class _ToFlat(Messenger):
    """Sets latent sites to given values, and collects the unconstrained values."""

    def __init__(self, values: Mapping[str, Tensor], choose: _Choice) -> None:
        super().__init__()
        self.values, self.choose = values, choose
        self.pieces: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.values:
            value = self.values[msg["name"]]
            transform = self.choose(msg, self.values)
            self.pieces[msg["name"]] = transform.inv(value).reshape(-1)
            msg["value"], msg["done"] = value, True


class LogDensity:
    """The unconstrained log joint density of a Pyro model with continuous latent sites.

    The model runs in float64: tensors in the arguments are converted; a model that is a module is
    copied, converted and put in evaluation mode. Its parameters and the arguments, including the
    observations, are constants. Models with discrete latent sites, with subsampled data or without
    latent sites are refused.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self.model = model
        self.args: tuple[Any, ...] = _double(tuple(args))
        self.kwargs: dict[str, Any] = _double(dict(kwargs or {}))
        self._whitened: dict[str, tuple[Hint, Factor | None]] = {}
        self._flattens = False
        self.sites = tuple(_latent_sites(self._trace_under(InitMessenger(_first_value))))
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
                trace = self._trace()
            joint = trace.log_prob_sum()
        return joint + handler.log_jacobian, handler.values

    def _trace(self) -> Any:
        return poutine.trace(self.model).get_trace(*self.args, **self.kwargs)

    def _trace_under(self, handler: Messenger, seed: int = 0) -> Any:
        with self._running(seed), handler:
            return self._trace()

    @contextlib.contextmanager
    def _running(self, seed: int = 0) -> Iterator[None]:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with pyro.validation_enabled(False), seeded(seed, torch.device("cpu")):
                yield
        except CANNOT as error:
            if isinstance(error, ZooError):
                raise
            raise ZooError(f"the model cannot be run in float64: {cause_of(error)}") from error
        finally:
            torch.set_default_dtype(default)

    def pack(self, values: Mapping[str, Any]) -> Tensor:
        """Return the flat vector of constrained values by site."""
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
        handler = _ToFlat(tensors, self._transform)
        with torch.no_grad(), self._running(), handler:
            self.model(*self.args, **self.kwargs)
        return torch.cat([handler.pieces[site.name] for site in self.sites])

    def prior_points(self, seeds: Sequence[int]) -> Array:
        """Return flat vectors of draws of the prior, one per row; flat priors give one value.

        Draws at which the model fails are left out.
        """
        rows = []
        for seed in seeds:
            with contextlib.suppress(ZooError):
                trace = self._trace_under(InitMessenger(_first_value), seed)
                values = {site.name: trace.nodes[site.name]["value"] for site in self.sites}
                rows.append(self.pack(values).numpy())
        return np.stack(rows) if rows else np.empty((0, self.size))

    def unpack(self, flat: Tensor | Array) -> dict[str, Array]:
        """Return constrained values by site; leading dimensions of ``flat`` are kept."""
        points = torch.as_tensor(flat, dtype=torch.float64)
        batch = points.shape[:-1]
        columns = self._constrain_rows(points.reshape(-1, self.size))
        return {
            name: column.reshape((*batch, *self.shapes[name])).numpy()
            for name, column in columns.items()
        }

    def _constrain_rows(self, rows: Tensor) -> dict[str, Tensor]:
        def constrain(flat: Tensor) -> dict[str, Tensor]:
            return self._evaluate(flat)[1]

        with torch.no_grad():
            try:
                # The recorded graph leaves out the likelihood, which the values do not need.
                graph = _record(constrain, torch.zeros(self.size, dtype=torch.float64))
                chunks = [torch.vmap(graph)(chunk) for chunk in rows.split(_CHUNK)]
                return {s.name: torch.cat([c[s.name] for c in chunks]) for s in self.sites}
            except CANNOT:
                singles = [constrain(row) for row in rows]
                return {s.name: torch.stack([v[s.name] for v in singles]) for s in self.sites}

    def with_hints(self, hints: Mapping[str, Hint], *, flatten: bool = False) -> "LogDensity":
        """Return the same density in other coordinates: sites with a hint are whitened.

        With `flatten`, also those of `log_uniform_sites` change.
        """
        factors = self._forms[1] if hints else {}
        other = copy.copy(self)
        other._whitened = {name: (hint, factors.get(name)) for name, hint in hints.items()}
        other._flattens = flatten
        return other

    def log_uniform_sites(self) -> tuple[str, ...]:
        """Return the sites with a smooth log-uniform prior, a spike with heavy tails."""
        trace = self._trace_under(InitMessenger(_first_value))
        return tuple(s.name for s in self.sites if is_log_uniform(trace.nodes[s.name]["fn"]))

    def hierarchical_normals(self) -> tuple[str, ...]:
        """Return the hierarchical normal sites, centred or non-centred.

        Their location or scale depends on other latent sites, or the model multiplies them by a
        function of other latent sites.
        """
        moving, factors = self._forms
        return tuple(s.name for s in self.sites if s.name in moving or s.name in factors)

    @functools.cached_property
    def _forms(self) -> tuple[set[str], dict[str, Factor]]:
        """Centred hierarchical sites, and the factors of non-centred ones."""
        plain = self.with_hints({})
        points = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, self.size)))
        with torch.no_grad():
            traces = [plain._trace_under(plain._handler(point)) for point in points]
        moving, fixed = set(), []
        for site in self.sites:
            first, second = (normal_base(trace.nodes[site.name]["fn"]) for trace in traces)
            if first is None or second is None:
                continue
            pairs = (first.loc, second.loc), (spread_of(first), spread_of(second))
            if not all(torch.equal(*pair) for pair in pairs):
                moving.add(site.name)
            elif isinstance(first, Normal):
                fixed.append(site.name)
        return moving, self._find_factors(fixed, traces[0])

    def _find_factors(self, fixed: Sequence[str], example: Any) -> dict[str, Factor]:
        names = [site.name for site in self.sites]

        def rest_density(*values: Tensor) -> Tensor:
            trace = self._trace_of(dict(zip(names, values, strict=True)))
            with self._running():
                trace.compute_log_prob()
            rest = [node for name, node in trace.nodes.items() if name not in fixed]
            return torch.stack([n["log_prob_sum"] for n in rest if n["type"] == "sample"]).sum()

        try:
            graph = _record(rest_density, *(example.nodes[name]["value"] for name in names))
        except CANNOT:
            return {}
        return find_factors(graph, names, fixed)

    def _trace_of(self, values: dict[str, Tensor]) -> Any:
        return self._trace_under(poutine.condition(data=values))

    def estimate_hints(self, draws: Array, names: Sequence[str]) -> dict[str, Hint]:
        """Estimate hints for normal sites from draws, which are flat vectors, one per row.

        The gradients given to `zoo.infer.nuts.whitening.regress` are those of the log joint without
        the prior of the site. If the model multiplies the site, the hint is about the product.
        """
        factors = self._forms[1]
        points = self.unpack(draws)
        values: dict[str, list[Tensor]] = {name: [] for name in names}
        slopes: dict[str, list[Tensor]] = {name: [] for name in names}
        for row in range(len(draws)):
            given = {name: torch.from_numpy(np.array(v[row])) for name, v in points.items()}
            for name, slope in zip(names, self._rest_gradients(given, names), strict=True):
                with torch.no_grad():
                    factor = factors[name](given) if name in factors else 1.0
                    values[name].append(apply_factor(factor, given[name]))
                    slopes[name].append(slope_of_product(factor, slope))
        return {
            name: regress(torch.stack(values[name]), torch.stack(slopes[name])) for name in names
        }

    def _rest_gradients(self, values: dict[str, Tensor], names: Sequence[str]) -> list[Tensor]:
        """Return the gradients of the log joint without the prior of each site."""
        leaves = [values[name].requires_grad_() for name in names]
        trace = self._trace_of(values)
        with self._running():
            trace.compute_log_prob()
        parts = {n: node["log_prob_sum"] for n, node in trace.nodes.items() if "log_prob" in node}
        rest = []
        for name, leaf in zip(names, leaves, strict=True):
            others = [part for n, part in parts.items() if n != name]
            total = torch.stack([(0 * leaf).sum(), *others]).sum()  # the rest may be nothing
            (slope,) = torch.autograd.grad(total, leaf, retain_graph=True)
            rest.append(slope)
        return rest

    def _handler(self, flat: Tensor) -> _FromFlat:
        return _FromFlat(self.sites, flat, self._transform)

    def _transform(self, site: Mapping[str, Any], before: Mapping[str, Tensor]) -> Transform:
        hint, factor = self._whitened.get(site["name"], (None, None))
        multiplier = 1.0 if factor is None else factor(before)
        return site_transform(site["fn"], hint, multiplier, flatten=self._flattens)

    def capture(self) -> GraphModule:
        """Record value and gradient as a flat graph that needs neither Pyro nor the model.

        The graph can be pickled; data are constants in it.
        """
        gradient = torch.func.grad_and_value(self._evaluate, has_aux=True)

        def value_and_gradient(flat: Tensor) -> tuple[Tensor, Tensor]:
            slope, (value, _) = gradient(flat)
            return value, slope

        # Not at zero, where a density may have a kink.
        return _record(value_and_gradient, torch.full((self.size,), 0.1, dtype=torch.float64))

    def values(self, rows: Array) -> Array:
        """Return the log density of many flat vectors, one per row."""
        points = torch.as_tensor(rows, dtype=torch.float64)
        with torch.no_grad():
            try:
                graph = _record(self, torch.full((self.size,), 0.1, dtype=torch.float64))
                size = max(1, MAX_ELEMENTS // max(self.size, _largest_constant(graph)))
                return torch.cat([torch.vmap(graph)(part) for part in points.split(size)]).numpy()
            except CANNOT:
                return torch.stack([self(point) for point in points]).numpy()

    @nan_if_singular
    def eager(self, flat: Array) -> tuple[float, Array]:
        """Return value and gradient by running the model under autograd."""
        leaf = torch.from_numpy(np.array(flat)).requires_grad_()
        value = self(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        return value.item(), slope.numpy()


def _largest_constant(graph: GraphModule) -> int:
    """Return the number of elements of the largest tensor of data in a graph."""
    tensors = [getattr(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"]
    return max((t.numel() for t in tensors if isinstance(t, Tensor)), default=1)


def _record(function: Callable[..., Any], *examples: Tensor) -> GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about the recorded operations
        recorded = make_fx(function)(*examples)
    # A plain graph: one with metadata of the recording cannot be unpickled in another process.
    plain = Graph()
    plain.output(plain.graph_copy(recorded.graph, {}))
    plain.eliminate_dead_code()
    return GraphModule(recorded, plain)


def _first_value(site: Mapping[str, Any]) -> Tensor:
    """Draw a site from its prior, or return any value of its support if the prior is flat."""
    try:
        value: Tensor = site["fn"]()
    except NotImplementedError:
        bijection = biject_to(support_of(site["fn"]))
        value = bijection(torch.zeros(bijection.inverse_shape(site["fn"].shape())))
    return value


def _latent_sites(trace: Any) -> list[Site]:
    found = []
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
        support = support_of(node["fn"])
        if support is None or support.is_discrete or node["infer"].get("enumerate"):
            raise ZooError(
                f"latent site {name!r} ({type(node['fn']).__name__}) is discrete. Only continuous "
                "sites have a gradient: sum it out in the model."
            )
        shape = node["value"].shape
        flat_shape = tuple(biject_to(support).inverse_shape(shape))
        found.append(Site(name, tuple(shape), flat_shape, str(support)))
    if not found:
        raise ZooError("the model has no latent site: there is nothing to sample.")
    return found


def _double(value: Any) -> Any:
    """Convert floating-point tensors to float64, also in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, dict):
        converted = copy.copy(value)  # of the same class, for example an OrderedDict
        converted.update({key: _double(item) for key, item in value.items()})
        return converted
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple
        return value._make(map(_double, value))
    return type(value)(map(_double, value)) if type(value) in (tuple, list) else value
