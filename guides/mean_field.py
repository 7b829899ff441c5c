"""Mean field: every latent site has a posterior of its own, independent of all others."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor, nn
from torch.distributions import biject_to, constraints

import guides.distributions  # noqa: F401  (registers the divergences of log-normal posteriors)
from guides.base import Guide, latent_sites, module_key
from guides.log_scale_normal import LogScaleNormal
from guides.slot import LocScale


class MeanField(Guide):
    r"""Fully factorised posterior of a Pyro model.

    .. math:: q(w) = \prod_i q(w_i \mid \mu_i, \sigma_i)

    The family follows the support of the site: Normal on the real line, log-normal on the positive
    half-line, a transformed Normal elsewhere. Sites are explicit distributions, so that
    `pyro.infer.TraceMeanField_ELBO` finds an analytic divergence wherever one is registered (Pyro's
    ``AutoNormal`` samples auxiliary sites, which hides it).

    Parameters
    ----------
    model, *args, **kwargs
        The Pyro model to approximate, and its arguments, data included. It is run once, with every
        latent site at its initial value.
    init
        Initial values by site, in constrained space. Other sites start at the median of their prior
        or, if it has none in closed form, at zero in unconstrained space.
    init_scale
        Initial standard deviation in unconstrained space: one number, or one per site.

    References
    ----------
    Graves (2011), *Practical Variational Inference for Neural Networks*.
    """

    _is_full = False

    def __init__(
        self,
        model: Callable[..., Any],
        *args: Any,
        init: Mapping[str, Tensor] | None = None,
        init_scale: float | Mapping[str, float] = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        starts = dict(init or {})
        sites = _latent_sites(model, args, kwargs, starts)
        unknown = sorted(set(starts) - set(sites))
        if unknown:
            raise ValueError(f"no latent site is called {unknown[0]!r}. Sites: {', '.join(sites)}")
        self.names = list(sites)
        self.sites = nn.ModuleDict()
        for name, site in sites.items():
            scale = init_scale.get(name, 0.01) if isinstance(init_scale, Mapping) else init_scale
            self.sites[module_key(name)] = SitePosterior(site, scale)

    def __getitem__(self, name: str) -> "SitePosterior":
        posterior = self.sites[module_key(name)]
        assert isinstance(posterior, SitePosterior)
        return posterior

    def guide(self) -> None:
        """Sample every site from its posterior, inside the plates of the model.

        A plate that the model subsamples is subsampled here, and the model uses the same rows.
        """
        plates = {
            frame.name: pyro.plate(
                frame.name,
                frame.full_size,
                subsample_size=frame.full_size if self._is_full else frame.size,
                dim=frame.dim,
            )
            for name in self.names
            for frame in self[name].plates
        }
        for name in self.names:
            posterior = self[name]
            with contextlib.ExitStack() as stack:
                rows = {
                    frame.dim: stack.enter_context(plates[frame.name]) for frame in posterior.plates
                }
                pyro.sample(name, posterior.distribution(rows))

    def full_size(self) -> "MeanField":
        """Return this guide with all elements of the plates that the model subsamples."""
        copied = copy.copy(self)
        copied._is_full = True
        return copied

    def medians(self) -> dict[str, Tensor]:
        """Return the median of every site's posterior."""
        return {name: self[name].median().detach() for name in self.names}

    @property
    def plate_nesting(self) -> int:
        """Number of plate dimensions around the model's sites."""
        frames = [frame for name in self.names for frame in self[name].plates]
        return max((-frame.dim for frame in frames), default=0)


class SitePosterior(LocScale):
    """Posterior of one site: a Normal in unconstrained space, mapped onto the site's support.

    The initial location is the value of the traced ``site``. Inside a plate that is subsampled, all
    elements of the plate have parameters, with the same initial value.
    """

    def __init__(self, site: Mapping[str, Any], init_scale: float) -> None:
        support = _portable(site["fn"].support)
        with torch.no_grad():
            loc = biject_to(support).inv(site["value"])
        if not torch.isfinite(loc).all():
            raise ValueError(f"site {site['name']!r} cannot start on the border of its support")
        event_dim = loc.dim() - len(site["fn"].batch_shape)
        plates = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
        #: The plates that are subsampled, and the dimension of the parameters that belongs to each.
        subsampled = {f.dim: f.dim - event_dim for f in plates if f.full_size != f.size}
        for frame in plates:
            if frame.dim in subsampled:
                first = loc.narrow(subsampled[frame.dim], 0, 1)
                shape = list(loc.shape)
                shape[subsampled[frame.dim]] = frame.full_size
                loc = first.expand(shape)
        super().__init__(loc, init_scale)
        self.support = support
        self.kind = _kind(support)
        self.event_dim: int = site["fn"].event_dim
        self.plates, self.subsampled = plates, subsampled

    def distribution(self, rows: Mapping[int, Any] | None = None) -> Any:
        """Return the current posterior as a Pyro distribution, of some rows of its plates."""
        loc, log_scale = self.loc, self.log_scale
        for plate, dim in self.subsampled.items():
            if rows is not None:
                loc = loc.index_select(dim, rows[plate])
                log_scale = log_scale.index_select(dim, rows[plate])
        if self.kind == "real":
            return LogScaleNormal(loc, log_scale).to_event(self.event_dim)
        scale = log_scale.exp()
        if self.kind == "positive":
            return dist.LogNormal(loc, scale).to_event(self.event_dim)
        transform = biject_to(self.support)
        base = dist.Normal(loc, scale).to_event(transform.domain.event_dim)
        fn = dist.TransformedDistribution(base, [transform])
        return fn.to_event(self.event_dim - fn.event_dim)

    def median(self) -> Tensor:
        """Return the image of the location."""
        median: Tensor = biject_to(self.support)(self.loc)
        return median


def _portable(support: constraints.Constraint) -> constraints.Constraint:
    """Replace bounds that are equal for all elements by numbers, which have no device."""
    if isinstance(support, constraints.independent):
        base = _portable(support.base_constraint)
        return constraints.independent(base, support.reinterpreted_batch_ndims)
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    if not all(isinstance(bound, Tensor) and len(bound.unique()) == 1 for bound in bounds):
        return support
    return type(support)(*(float(bound.flatten()[0]) for bound in bounds if bound is not None))


def _kind(support: constraints.Constraint) -> str:
    """Return which family of posteriors fits a support."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.real:
        return "real"
    # Zero itself has no posterior mass, so non-negative is as good as positive.
    lower = getattr(support, "lower_bound", None)
    is_positive = isinstance(lower, int | float) and lower == 0
    return "positive" if is_positive and not hasattr(support, "upper_bound") else "other"


def _latent_sites(
    model: Callable[..., Any], args: Any, kwargs: Any, starts: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Run the model once with every latent site at its initial value; nothing is sampled."""

    def start(site: dict[str, Any]) -> Tensor:
        value = starts.get(site["name"])
        return start_of(site["fn"]) if value is None else value

    with poutine.block(), InitMessenger(start):
        trace = poutine.trace(model).get_trace(*args, **kwargs)
    return latent_sites(trace.nodes)


def _some_parameter(fn: Any) -> Tensor:
    """Return any tensor of a distribution, for its dtype and device."""
    for value in vars(fn).values():
        if torch.is_tensor(value) and value.is_floating_point():
            return value
    return _some_parameter(fn.base_dist) if hasattr(fn, "base_dist") else torch.empty(())


def start_of(fn: Any) -> Tensor:
    """Return the median of a distribution if it is implemented, else zero, unconstrained."""
    base = fn
    while isinstance(base, torch.distributions.Independent):
        base = base.base_dist
    like = _some_parameter(base)
    try:
        median: Tensor = base.icdf(like.new_tensor(0.5)).expand(fn.shape())
    except (NotImplementedError, AttributeError):
        transform = biject_to(fn.support)
        median = transform(like.new_zeros(transform.inverse_shape(fn.shape())))
    return median.detach().clone()
