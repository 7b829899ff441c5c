r"""Variational fits of a Pyro model: the zoo's mean-field and full-rank guides, by one recipe.

**Coordinates.** The unconstrained unknowns are :math:`u = u_0 + A z`, and the guide is one of
:math:`z`. With :math:`H` the curvature :math:`-\nabla^2 \log p(y, u)` at the start :math:`u_0`,
:math:`A` is diagonal, :math:`|H_{ii}|^{-1/2}`, for the mean-field guide, and
:math:`V |\Lambda|^{-1/2}` of :math:`H = V \Lambda V^\top` for the full-rank one. Neither changes
its family: factorised normals stay so when coordinates are scaled, all normals when they are mixed.

**Gradient.** `PARTICLES` draws, with the parameters inside :math:`\log q` held fixed (Roeder, Wu
and Duvenaud 2017): its noise disappears where the guide can be the posterior.

**Steps and stopping.** Adam, in rounds of `ROUND` steps at one rate. A round whose ELBO is not
better than that of the round before, by `PROGRESS` nats and two standard errors, ends that rate;
the next one is a quarter of it. After the last of `RATES` the fit has converged, and the guide's
parameters are averaged over the last round (Dhaka et al. 2020). A fit that has not after
`MAX_ROUNDS` rounds is marked as such.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.func import functional_call

from guides import MeanField
from guides.base import Guide
from guides.full_rank import FullRank
from zoo.diagnostics.approximation import pareto_khat
from zoo.infer.nuts.density import LogDensity
from zoo.infer.recording import record

Family = Literal["mean_field", "full_rank"]
FAMILIES: tuple[Family, ...] = ("mean_field", "full_rank")

PARTICLES = 16
ROUND = 500
RATES = (0.04, 0.01, 0.0025)
PROGRESS = 0.01
MAX_ROUNDS = 60
INIT_SCALE = 0.5
DRAWS = 10_000
#: Draws that the model is run with at a time.
CHUNK = 500


@dataclass(frozen=True)
class Approximation:
    """Draws from a fitted guide by site, shape ``(1, draws, ...)``, and how good they are.

    Attributes
    ----------
    values
        The draws.
    elbo
        The ELBO in nats, of the same draws.
    khat
        Pareto shape of their importance weights.
    steps
        Number of steps taken.
    converged
        Whether the recipe stopped by itself.
    seconds
        CPU time of the fit.
    """

    values: dict[str, np.ndarray]
    elbo: float
    khat: float
    steps: int
    converged: bool
    seconds: float


def fit(
    model: Callable[..., None],
    args: Sequence[Tensor],
    family: Family,
    start: dict[str, Tensor],
    *,
    max_rounds: int = MAX_ROUNDS,
) -> Approximation:
    """Maximise the ELBO of a guide by the recipe above.

    Parameters
    ----------
    model, args
        The model and its data.
    family
        One of `FAMILIES`.
    start
        Values at which sites start; without them at zero in unconstrained space.
    max_rounds
        Rounds after which the fit is given up.
    """
    pyro.set_rng_seed(0)
    started = time.process_time()
    density = LogDensity(model, args)
    origin = density.pack(start) if start else torch.zeros(density.size, dtype=torch.float64)
    objective = Objective(density, origin, _units(density, origin, family), family)
    with pyro.settings.context(module_local_params=True), pyro.validation_enabled(False):
        rounds, converged = _maximise(objective, max_rounds)
        seconds = time.process_time() - started
        with torch.no_grad():
            chunks = [objective(CHUNK) for _ in range(DRAWS // CHUNK)]
    weights = torch.cat([weight for _, weight in chunks]).numpy()
    return Approximation(
        density.unpack(torch.cat([draws for draws, _ in chunks])[None]),
        float(weights.mean()),
        pareto_khat(weights),
        rounds * ROUND,
        converged,
        seconds,
    )


def _units(density: LogDensity, origin: Tensor, family: Family) -> Tensor:
    """Return the matrix A of the coordinates."""
    curvature = -torch.autograd.functional.hessian(density, origin)
    if family == "mean_field":
        return torch.diag(curvature.diagonal().abs().rsqrt())
    eigenvalues, vectors = torch.linalg.eigh(curvature)
    units: Tensor = vectors * eigenvalues.abs().rsqrt()
    return units


class Objective(nn.Module):
    """A guide of the standardised unknowns, and the log importance weights of its draws."""

    def __init__(self, density: LogDensity, origin: Tensor, units: Tensor, family: Family) -> None:
        super().__init__()
        self.density, self.origin, self.units = density, origin, units
        self.log_volume = torch.linalg.slogdet(units).logabsdet

        def unknowns() -> None:  # a guide only looks at their shape and support
            pyro.sample("z", dist.Normal(torch.zeros_like(origin), 1.0).to_event(1))

        guides = {"mean_field": MeanField, "full_rank": FullRank}
        start = {"z": torch.zeros_like(origin)}
        self.guide: Guide = guides[family](unknowns, init=start, init_scale=INIT_SCALE)

    def forward(self, number: int) -> tuple[Tensor, Tensor]:
        """Return draws of the unconstrained unknowns, and log p - log q of each.

        Gradients go through the draws, and not through the parameters inside of log q.
        """
        z = self.guide.draw(number)["z"]
        fixed = {f"guide.{name}": p.detach() for name, p in self.guide.named_parameters()}
        log_q = functional_call(_GuideDensity(self.guide), fixed, (z,))
        u = self.origin + z @ self.units.T
        return u, torch.vmap(self.density)(u) + self.log_volume - log_q


class _GuideDensity(nn.Module):
    """The log density of a guide at each of many draws."""

    def __init__(self, guide: Guide) -> None:
        super().__init__()
        self.guide = guide

    def forward(self, z: Tensor) -> Tensor:
        density: Tensor = torch.vmap(lambda one: self.guide.log_density({"z": one}))(z)
        return density


def _maximise(objective: Objective, max_rounds: int) -> tuple[int, bool]:
    """Fit the guide; return the number of rounds and whether they sufficed."""
    named = dict(objective.named_parameters())

    def step(values: list[Tensor]) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            given = dict(zip(named, leaves, strict=True))
            elbo = functional_call(objective, given, (PARTICLES,))[1].mean()
            return [elbo.detach(), *torch.autograd.grad(-elbo, leaves)]

    values = [parameter.detach().clone() for parameter in named.values()]
    replay = record(step, values, backend="replay")
    optimiser = torch.optim.Adam(values, lr=RATES[0])
    rates, before = list(RATES[1:]), (-math.inf, 0.0)
    rounds, converged = 0, False
    while rounds < max_rounds and not converged:
        rounds += 1
        elbo, error, averages = _round(replay, values, optimiser)
        if elbo - before[0] <= max(PROGRESS, 2 * math.hypot(error, before[1])):
            converged = not rates
            optimiser.param_groups[0]["lr"] = rates.pop(0) if rates else RATES[-1]
        before = elbo, error
    with torch.no_grad():
        for parameter, average in zip(named.values(), averages, strict=True):
            parameter.copy_(average)
    return rounds, converged


def _round(
    replay: Callable[..., Any], values: list[Tensor], optimiser: torch.optim.Optimizer
) -> tuple[float, float, list[Tensor]]:
    """Take the steps of a round; return mean ELBO, its standard error, and averaged parameters."""
    sums = [torch.zeros_like(value) for value in values]
    elbos = []
    with torch.no_grad():
        for _ in range(ROUND):
            elbo, *gradients = replay(values)
            elbos.append(float(elbo))
            for value, gradient in zip(values, gradients, strict=True):
                value.grad = gradient
            optimiser.step()
            for total, value in zip(sums, values, strict=True):
                total += value
    error = float(np.std(elbos) / math.sqrt(ROUND))
    return float(np.mean(elbos)), error, [total / ROUND for total in sums]
