"""`Guide`: runs its sample statements, draws many samples at once, and can be combined."""

import inspect
import itertools
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

#: Guides of whole models by class name; see `Guide`.
GUIDES: dict[str, type["Guide"]] = {}


class Guide(nn.Module):
    """A Pyro guide whose parameters are ordinary parameters of a module.

    A subclass writes its sample statements in `guide`. Use it with an ELBO module and one torch
    optimizer::

        elbo = TraceMeanField_ELBO()(model, guide)
        optimizer = torch.optim.Adam(elbo.parameters())

    or with `pyro.infer.SVI`: unless Pyro's parameters are module-local, a call registers the
    parameters in the global store.

    A subclass with the arguments ``model``, ``init`` and ``init_scale`` fits any model, and
    registers itself in `GUIDES`.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if {"model", "init", "init_scale"} <= set(inspect.signature(cls).parameters):
            known = GUIDES.setdefault(cls.__name__, cls)
            if known.__module__ != cls.__module__:
                raise ValueError(
                    f"the guide {cls.__name__!r} of {cls.__module__} is already defined by "
                    f"{known.__module__}"
                )
            GUIDES[cls.__name__] = cls

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site. The arguments are those of the model, and are ignored."""
        if not pyro.settings.get("module_local_params"):
            with warnings.catch_warnings():
                # Parameters that are not trained need not be in the store.
                warnings.filterwarnings("ignore", ".*because requires_grad=False", UserWarning)
                pyro.module(type(self).__name__, self)
        return self.sample_sites()

    @abstractmethod
    def guide(self) -> None:
        """Run the sample statements of the variational posterior."""

    def sample_sites(self) -> dict[str, Tensor]:
        """Run the sample statements and return their values by site."""
        with _SampledValues() as sampled:
            self.guide()
        return sampled.values

    def distributions(self) -> dict[str, Any]:
        """Return the current distribution of every site."""
        with poutine.block(), poutine.trace() as recorded:
            self.guide()
        nodes: dict[str, Any] = dict(recorded.trace.nodes)
        return {
            name: node["fn"]
            for name, node in nodes.items()
            if node["type"] == "sample" and not site_is_subsample(node)
        }

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """Draw all sites ``num_samples`` times in one vectorised call, stacked in front."""
        nesting = self.plate_nesting
        with poutine.block(), poutine.trace() as recorded:
            with pyro.plate("_draws", num_samples, dim=-1 - nesting):
                values = self.sample_sites()
        # A site outside of a plate that other sites are in has a dimension of size one for it.
        for name, value in values.items():
            frames = recorded.trace.nodes[name]["cond_indep_stack"]
            depth = max((-(f.dim or 0) for f in frames if f.name != "_draws"), default=0)
            values[name] = value.reshape(num_samples, *value.shape[1 + nesting - depth :])
        return values

    def medians(self) -> dict[str, Tensor]:
        """Return the median of every site's posterior."""
        return {name: median(fn).detach() for name, fn in self.distributions().items()}

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density at values of the sites, without the sites' scales in the ELBO."""
        conditioned = poutine.condition(self.sample_sites, data=dict(values))
        trace = poutine.trace(conditioned).get_trace()
        trace.compute_log_prob()
        sites: list[Any] = [trace.nodes[name] for name in values]
        total: Tensor = torch.stack([site["unscaled_log_prob"].sum() for site in sites]).sum()
        return total

    def advance(self, progress: float) -> None:
        """Follow the training; called before every step with the fraction of steps done."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of this posterior, to be added to those of a fit."""
        return {}

    @property
    def some_tensor(self) -> Tensor:
        """Any tensor of this guide, for its dtype and device."""
        return next(itertools.chain(self.parameters(), self.buffers()))

    @property
    def plate_nesting(self) -> int:
        """Number of plate dimensions that the sites of this guide use."""
        return 0


class _SampledValues(Messenger):
    """Collects the values of sample statements."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg):
            self.values[msg["name"]] = msg["value"]


def latent_sites(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sites of a trace that are sampled and not observed."""
    return {
        name: node
        for name, node in nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)
    }


def median(distribution: Any) -> Tensor:
    """Return the median of a distribution with independent elements, if it is implemented."""
    base = distribution
    while isinstance(base, torch.distributions.Independent):
        base = base.base_dist
    if isinstance(base, pyro.distributions.Delta):
        point: Tensor = base.v
        return point
    known = getattr(base, "median", None)
    if known is not None:
        value: Tensor = known
        return value
    half: Tensor = base.icdf(torch.full((), 0.5, dtype=base.mean.dtype, device=base.mean.device))
    return half


def module_key(name: str) -> str:
    """Return the key of a site or part in a `torch.nn.ModuleDict`.

    Keys may contain no dots, and must not be names of methods such as ``values``.
    """
    return "@" + name.replace(".", "/")


class Composite(Guide):
    """Independent guides by part of a model, in the order in which the model samples them."""

    def __init__(self, parts: Mapping[str, Guide]) -> None:
        super().__init__()
        self.names = list(parts)
        self.parts = nn.ModuleDict({module_key(name): part for name, part in parts.items()})

    def by_name(self) -> dict[str, Guide]:
        """Return the parts by name."""
        return {name: self[name] for name in self.names}

    def __getitem__(self, name: str) -> Guide:
        part = self.parts[module_key(name)]
        assert isinstance(part, Guide)
        return part

    def _guides(self) -> list[Guide]:
        return [part for part in self.parts.values() if isinstance(part, Guide)]

    def guide(self) -> None:
        """Run the sample statements of every part."""
        for part in self._guides():
            part.guide()

    @property
    def plate_nesting(self) -> int:
        """Number of plate dimensions of the deepest part."""
        return max((part.plate_nesting for part in self._guides()), default=0)

    def advance(self, progress: float) -> None:
        """Let every part follow the training."""
        for part in self._guides():
            part.advance(progress)

    def medians(self) -> dict[str, Tensor]:
        """Return the medians of every part."""
        return {name: value for part in self._guides() for name, value in part.medians().items()}
