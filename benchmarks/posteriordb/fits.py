"""Variational fits of a Pyro model: the zoo's mean field, and Pyro's full-rank normal."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_median, init_to_value
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn
from torch.func import functional_call

from guides import MeanField
from guides.base import module_key
from zoo.diagnostics.approximation import pareto_khat
from zoo.infer.capture import record
from zoo.infer.density import LogDensity

#: Draws per estimate of the gradient.
PARTICLES = 16
#: Learning rates of the first and the last step.
FIRST_RATE, LAST_RATE = 0.05, 0.0005
INIT_SCALE = 0.01
DRAWS = 10_000
#: Draws that the model is run with at a time.
CHUNK = 500


@dataclass(frozen=True)
class Approximation:
    """Draws from a fitted guide by site, shape ``(1, draws, ...)``, and how good they are."""

    values: dict[str, np.ndarray]
    khat: float
    seconds: float


def _mean_field(
    model: Callable[..., None], args: Sequence[Tensor], start: dict[str, Tensor]
) -> Any:
    return MeanField(model, *args, init=start, init_scale=INIT_SCALE)


def _full_rank(model: Callable[..., None], args: Sequence[Tensor], start: dict[str, Tensor]) -> Any:
    guide = AutoMultivariateNormal(
        model,
        init_loc_fn=init_to_value(values=start, fallback=init_to_median),
        init_scale=INIT_SCALE,
    )
    guide(*args)
    return guide


GUIDES = {"mean_field": _mean_field, "full_rank": _full_rank}


def fit(
    model: Callable[..., None],
    args: Sequence[Tensor],
    guide_name: str,
    start: dict[str, Tensor],
    num_steps: int,
) -> Approximation:
    """Maximise the ELBO by Adam with a learning rate that falls geometrically.

    Parameters
    ----------
    model, args
        The model and its data; its plates are one-dimensional.
    guide_name
        One of `GUIDES`.
    start
        Values at which sites start; others start at the median of their prior.
    num_steps
        Number of steps.
    """
    pyro.set_rng_seed(0)
    started = time.process_time()
    with pyro.settings.context(module_local_params=True):
        guide = GUIDES[guide_name](model, args, start)
        sizes = _sizes(model, args, start)
        loss = _Loss(guide, lambda: -_weighted_draws(model, guide, args, PARTICLES)[1].mean())
        _minimise(loss, sizes, num_steps)
        seconds = time.process_time() - started
        with torch.no_grad():
            chunks = [_weighted_draws(model, guide, args, CHUNK) for _ in range(DRAWS // CHUNK)]
    log_weights = torch.cat([weights for _, weights in chunks]).numpy()
    values = {
        name: torch.cat([draws[name] for draws, _ in chunks])[None].numpy() for name in chunks[0][0]
    }
    return Approximation(values, pareto_khat(log_weights), seconds)


class _Loss(nn.Module):
    """A loss as a module, whose parameters are those of the guide."""

    def __init__(self, guide: nn.Module, loss: Callable[[], Tensor]) -> None:
        super().__init__()
        self.guide, self.loss = guide, loss

    def forward(self) -> Tensor:
        return self.loss()


def _sizes(
    model: Callable[..., None], args: Sequence[Tensor], start: dict[str, Tensor]
) -> dict[str, Tensor]:
    r"""Return how far a site's location should move at a time, in unconstrained space.

    Where a start is known this is :math:`(-\partial^2 \log p / \partial u_i^2)^{-1/2}` there: the
    standard deviations of these posteriors span four orders of magnitude, and a step of Adam is
    about as long as its rate. Scaling coordinates one by one does not change the family.
    """
    density = LogDensity(model, args)
    sizes = torch.ones(density.size)
    if start:
        hessian = torch.autograd.functional.hessian(density, density.pack(start))
        sizes = (-hessian.diagonal()).rsqrt()
    pieces = sizes.split([site.size for site in density.sites])
    by_site = {
        site.name: piece.reshape(site.unconstrained_shape)
        for site, piece in zip(density.sites, pieces, strict=True)
    }
    # The names of locations in a mean-field guide, and in one normal of all sites together.
    return {f"guide.sites.{module_key(name)}.loc": size for name, size in by_site.items()} | {
        "guide.loc": sizes
    }


def _minimise(loss: _Loss, sizes: dict[str, Tensor], num_steps: int) -> None:
    """Run Adam on a loss that is recorded once and replayed, with coordinates in their sizes."""
    named = dict(loss.named_parameters())
    units = [sizes.get(name, torch.ones(())) for name in named]
    origins = [value.detach().clone() for value in named.values()]

    def gradients(shifts: list[Tensor]) -> list[Tensor]:
        leaves = [shift.detach().requires_grad_() for shift in shifts]
        with torch.enable_grad(), pyro.validation_enabled(False):
            moved = [o + u * leaf for o, u, leaf in zip(origins, units, leaves, strict=True)]
            total = functional_call(loss, dict(zip(named, moved, strict=True)), ())
            return list(torch.autograd.grad(total, leaves))

    shifts = [torch.zeros_like(origin) for origin in origins]
    step = record(gradients, shifts, backend="replay")
    optimiser = torch.optim.Adam(shifts, lr=FIRST_RATE)
    decay = (LAST_RATE / FIRST_RATE) ** (1 / num_steps)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, decay)
    with torch.no_grad():
        for _ in range(num_steps):
            for shift, slope in zip(shifts, step(shifts), strict=True):
                shift.grad = slope
            optimiser.step()
            schedule.step()
        for parameter, o, u, shift in zip(named.values(), origins, units, shifts, strict=True):
            parameter.copy_(o + u * shift)


def _weighted_draws(
    model: Callable[..., None], guide: Any, args: Sequence[Tensor], number: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return draws from a guide by site of the model, and their log importance weights."""
    particles = pyro.plate("particles", number, dim=-2)
    guide_trace = poutine.trace(particles(guide)).get_trace(*args)
    replayed = poutine.replay(particles(model), trace=guide_trace)
    model_trace = poutine.trace(replayed).get_trace(*args)
    values = {
        name: node["value"].reshape(number, -1).squeeze(-1)
        for name, node in prune_subsample_sites(model_trace).nodes.items()
        if node["type"] == "sample" and not node["is_observed"]
    }
    return values, _log_densities(model_trace) - _log_densities(guide_trace)


def _log_densities(trace: Any) -> Tensor:
    """Return the log density of each particle."""
    pruned = prune_subsample_sites(trace)
    pruned.compute_log_prob()
    terms = [node["log_prob"] for node in pruned.nodes.values() if node["type"] == "sample"]
    return torch.stack([term.sum(-1) for term in terms]).sum(0)
