"""Estimates for decisions during training: the ELBO with common random numbers, and outputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.base import Guide
from guides.mean_field import MeanField
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.rng import seeded
from zoo.infer.svi.average import left_alone
from zoo.infer.svi.objective import Objective, statistics_of_batches
from zoo.infer.svi.schedule import child_seed
from zoo.network.bnn import BNN

Array = NDArray[np.floating[Any]]

#: Stream of random numbers derived from the seed of a run.
MONITOR_STREAM = 4_000_000_007
#: Rows of one estimate of the ELBO.
ROWS = 1024
#: Smallest and largest number of estimates, and their cost as a fraction of that of the steps.
MIN_VALUES, MAX_VALUES = 16, 256
COST = 0.05
#: Rows at which outputs are compared, and draws.
POINTS, DRAWS = 32, 64


@dataclass(frozen=True)
class Outputs:
    """Means and sds of the outputs at fixed rows, or of the unknowns of a model without rows."""

    mean: Array
    sd: Array


def change_in_sds(now: Outputs, before: Outputs, sd: Array | None = None) -> float:
    r"""Return the root mean square of the changes of outputs in posterior sds.

    Outputs without a spread have no scale and are left out; NaN if there are no others. ``sd`` are
    the sds if they became known later.
    """
    scale = np.sqrt((now.sd**2 + before.sd**2) / 2) if sd is None else sd
    moving = scale > 1e-6 * np.abs(now.mean).max(initial=0.0)
    if not moving.any():
        return float("nan")
    z = (now.mean - before.mean)[moving] / scale[moving]
    return float(np.sqrt((z**2).mean()))


class Monitor:
    """Estimates ELBO and outputs of the current parameters, with the same random numbers each time.

    Parameters
    ----------
    objective
        The objective that is trained, with its model and guide.
    rows
        All training rows as arguments of the model; empty for a model that holds its data.
    batch_size
        Rows of a step, for the cost of an estimate.
    seed
        Seed of the run.
    """

    def __init__(
        self, objective: Objective, rows: tuple[Tensor, ...], *, batch_size: int, seed: int
    ) -> None:
        self.objective, self.rows, self.seed = objective, rows, seed
        self.num_data = len(rows[0]) if rows else observed_elements(objective)
        self._steps = 1.0 + (min(ROWS, self.num_data) / (3 * batch_size) if rows else 0.0)

    def number(self, steps: int) -> int:
        """Return how many estimates are worth their cost after so many steps."""
        return int(np.clip(COST * steps / self._steps, MIN_VALUES, MAX_VALUES))

    @torch.no_grad()
    def elbos(self, number: int) -> Array:
        """Return unbiased estimates of the ELBO; the k-th has the same rows and noise each time."""
        objective = self.objective
        device = objective.kl_weight.device
        values = []
        with (
            pyro.validation_enabled(False),
            pyro.settings.context(module_local_params=True),
            left_alone(objective),
            seeded(0, device),
            statistics_of_batches(objective.model),
        ):
            objective.eval()
            for k in range(number):
                torch.manual_seed(child_seed(self.seed, MONITOR_STREAM + k))
                values.append(-objective(*self._some_rows(device)))
        found: Array = torch.stack(values).double().cpu().numpy()
        return found

    def _some_rows(self, device: torch.device) -> list[Tensor]:
        if self.num_data <= ROWS or not self.rows:
            return [part.to(device) for part in self.rows]
        chosen = torch.randint(self.num_data, (ROWS,)).to(self.rows[0].device)
        return [part[chosen].to(device) for part in self.rows]

    def outputs(self) -> Outputs | None:
        """Return the outputs at fixed rows; None if they are not known for this guide."""
        model, guide = self.objective.model, self.objective.guide
        with left_alone(self.objective), seeded(0, guide.some_tensor.device):
            self.objective.eval()
            drawn = _network(model, guide, self.rows[0], self.seed) if self.rows else None
            if drawn is None:
                drawn = _unknowns(guide, self.seed)
        if drawn is None or not torch.isfinite(drawn).all():
            return None
        flat = drawn.double().reshape(len(drawn), -1)
        return Outputs(flat.mean(0).cpu().numpy(), flat.std(0).cpu().numpy())


@torch.no_grad()
def _network(model: Any, guide: Guide, x: Tensor, seed: int) -> Tensor | None:
    if not isinstance(model, BNN):
        return None
    rows = np.linspace(0, len(x) - 1, min(POINTS, len(x))).astype(int)
    draws = draw_posterior(model, guide, DRAWS, seed=child_seed(seed, MONITOR_STREAM))
    device = guide.some_tensor.device
    slots = draws.slots | statistics_of_draws(model, draws.slots, x)
    return network_outputs(model, slots, x[torch.as_tensor(rows)].to(device), mode="off")


@torch.no_grad()
def _unknowns(guide: Guide, seed: int) -> Tensor | None:
    whole = guide.full_size() if isinstance(guide, MeanField) else guide
    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        torch.manual_seed(child_seed(seed, MONITOR_STREAM))
        try:
            drawn = whole.draw(DRAWS)
        except (NotImplementedError, RuntimeError, ValueError):  # a guide of the user
            return None
    return torch.cat([value.detach().reshape(DRAWS, -1) for value in drawn.values()], 1)


@torch.no_grad()
def observed_elements(objective: Objective) -> int:
    """Return how many numbers a model that holds its data observes, subsampled plates in full."""
    with (
        pyro.validation_enabled(False),
        pyro.settings.context(module_local_params=True),
        seeded(0, objective.kl_weight.device),
    ):
        sampled = poutine.trace(objective.guide).get_trace()
        replayed: Callable[[], Any] = poutine.replay(objective.model, trace=sampled)
        nodes: Mapping[str, Any] = dict(poutine.trace(replayed).get_trace().nodes)
    total = 0.0
    for node in nodes.values():
        if node["type"] == "sample" and node["is_observed"] and not site_is_subsample(node):
            frames = [f for f in node["cond_indep_stack"] if f.vectorized]
            share = np.prod([(getattr(f, "full_size", None) or f.size) / f.size for f in frames])
            total += torch.as_tensor(node["value"]).numel() * float(share)
    return max(1, round(total))
