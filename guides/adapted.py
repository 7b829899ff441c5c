"""Any Pyro guide as a guide of this package: autoguides, modules and plain functions."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median, init_to_value
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import biject_to, transform_to

from guides.base import Guide, latent_sites, module_key


class Adapted(Guide):
    """Any Pyro guide. Its density is known for subclasses of `AutoContinuous` only.

    Parameters
    ----------
    guide
        A guide of `pyro.infer.autoguide`, a module, or a function with ``pyro.param`` statements.
    model
        The model; the guide must sample all of its latent sites.
    *args, **kwargs
        Arguments of both.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        model: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.auto = guide if isinstance(guide, nn.Module) else ParametersOf(guide)
        _keep_parameters(self.auto)
        self.arguments = (args, kwargs)
        with _own_parameters(), poutine.block():
            traced = poutine.trace(self.auto).get_trace(*args, **kwargs)  # makes the parameters
            replayed = poutine.trace(poutine.replay(model, trace=traced))
            nodes: dict[str, Any] = dict(replayed.get_trace(*args, **kwargs).nodes)
        latent = latent_sites(nodes)
        self.supports = {name: node["fn"].support for name, node in latent.items()}
        self.is_plated = any(node["cond_indep_stack"] for node in latent.values())
        missing = [name for name in latent if name not in traced.nodes]
        if missing:
            raise ValueError(f"the guide has no site {missing[0]!r}, which the model samples")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the guide on the arguments of the model."""
        if not args and not kwargs:
            args, kwargs = self.arguments
        with _own_parameters():
            return self.auto(*args, **kwargs)

    def guide(self) -> None:
        """Run the sample statements of the guide."""
        self()

    def sample_sites(self) -> dict[str, Tensor]:
        """Run the sample statements and return the values of the model's sites."""
        values = super().sample_sites()
        return {name: values[name] for name in self.supports}

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """Draw all sites ``num_samples`` times, stacked in front."""
        with poutine.block():
            draws = [self.sample_sites() for _ in range(num_samples)]
        return {name: torch.stack([draw[name] for draw in draws]) for name in self.supports}

    @torch.no_grad()
    def medians(self) -> dict[str, Tensor]:
        """Return the median of every site's posterior."""
        args, kwargs = self.arguments
        auto: Any = self.auto
        if not hasattr(auto, "median"):
            return super().medians()
        with _own_parameters():
            values: dict[str, Tensor] = auto.median(*args, **kwargs)
        return {name: values[name].detach() for name in self.supports}

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of this guide at values of its sites."""
        if not isinstance(self.auto, AutoContinuous):
            raise NotImplementedError(f"the density of {type(self.auto).__name__} is not known")
        flat, correction = [], self.some_tensor.new_zeros(())
        for name, support in self.supports.items():
            transform = biject_to(support)
            u = transform.inv(values[name])
            flat.append(u.reshape(-1))
            correction = correction + transform.log_abs_det_jacobian(u, values[name]).sum()
        args, kwargs = self.arguments
        with _own_parameters():
            posterior = self.auto.get_posterior(*args, **kwargs)
            total: Tensor = posterior.log_prob(torch.cat(flat)) - correction
        return total


def auto_guide(
    family: Callable[..., Any],
    model: Callable[..., Any],
    *args: Any,
    init: Mapping[str, Tensor],
    init_scale: float,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Adapted:
    """Return a guide of a class of `pyro.infer.autoguide`.

    Parameters
    ----------
    family
        The class.
    model, *args, **kwargs
        The model to approximate, and its arguments.
    init
        Initial values of sites, in constrained space; others start at the median of their prior.
    init_scale
        Initial standard deviation, for the classes that take one.
    options
        Further arguments of the class.
    """
    given = dict(options or {})
    accepted = _accepted(family)
    values = {name: value.detach() for name, value in init.items()}
    start = init_to_value(values=values, fallback=init_to_median)
    for name, value in (("init_loc_fn", start), ("init_scale", init_scale)):
        if name in accepted:
            given.setdefault(name, value)
    with poutine.block(), _own_parameters():
        guide = family(model, **given)
        guide(*args, **kwargs)
    return Adapted(guide, model, *args, **kwargs)


def _accepted(family: Any) -> set[str]:
    """Return the arguments of a class, including those that it passes on to its bases."""
    found: set[str] = set()
    classes: Iterable[Any] = family.__mro__ if isinstance(family, type) else (family,)
    for cls in classes:
        own = inspect.signature(cls).parameters
        found |= set(own)
        if "kwargs" not in own:
            break
    return found


class ParametersOf(nn.Module):
    """A Pyro function whose ``pyro.param`` statements are parameters of this module.

    They are created by the first call of the function, and are unconstrained.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.unconstrained = nn.ParameterDict()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the parameters of this module."""
        with _FromModule(self.unconstrained):
            return self.function(*args, **kwargs)


class _FromModule(Messenger):
    """Replaces ``pyro.param`` statements by the parameters of a module."""

    def __init__(self, parameters: nn.ParameterDict) -> None:
        super().__init__()
        self.parameters = parameters

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        key = module_key(msg["name"])
        transform = transform_to(msg["kwargs"]["constraint"])
        if key not in self.parameters:
            if len(msg["args"]) < 2:
                raise ValueError(f"the parameter {msg['name']!r} has no initial value")
            start = msg["args"][1]
            start = start() if callable(start) else start
            with torch.no_grad():
                self.parameters[key] = nn.Parameter(transform.inv(start.detach()).clone())
        msg["value"], msg["done"] = transform(self.parameters[key]), True


def _keep_parameters(module: nn.Module) -> None:
    """Let a guide that was created with Pyro's global parameter store keep its own parameters."""
    for part in module.modules():
        context = getattr(part, "_pyro_context", None)
        if context is not None and not hasattr(context, "param_state"):
            context.param_state = {"params": {}, "constraints": {}}


def _own_parameters() -> Any:
    """Keep Pyro from sharing the parameters of all guides of this class by their names."""
    return pyro.settings.context(module_local_params=True)
