r"""Change of the ELBO under simple transformations of the posterior.

A map :math:`T` of the unconstrained unknowns :math:`u` transforms the posterior :math:`q`. The
change of the ELBO can be estimated from draws of the guide:

.. math::
    \mathrm{ELBO}(Tq) - \mathrm{ELBO}(q) =
        E_q \left[ \log p(y, T(u)) - \log p(y, u) + \log |\det T'| \right]

with :math:`p` the density of the unconstrained unknowns. There are two moves, with several factors
:math:`r`: all standard deviations times :math:`r`, and all means times :math:`r`:

.. math:: T(u) = c + r (u - c), \qquad T(u) = u + (r - 1) c

with :math:`c` the medians of the guide. Guides that are Gaussian in unconstrained space, factorised
or not, are closed under both moves, so at the maximum of the ELBO no factor increases it, for any
posterior. Other guides are not checked. A divergence with a wrong weight and scales that have not
converged are detected here, but not in the loss.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from guides.base import Composite, Guide
from guides.full_rank import FullRank
from guides.slot import LocScale
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.predict.draws import Draws, log_likelihood, site_log_priors, slots_of
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.recording import Mode
from zoo.network.bnn import BNN

Array = NDArray[Any]
Move = Literal["scale", "mean"]

MOVES: tuple[Move, ...] = ("scale", "mean")
FACTORS = (0.5, 0.8, 1.25, 2.0)
#: Number of draws, and largest product of draws, rows and moves; larger data are subsampled.
MIN_DRAWS, MAX_DRAWS = 16, 64
MAX_ENTRIES = 500_000


def elbo_gains(
    model: BNN, guide: Guide, draws: Draws, x: Tensor, y: Tensor, *, mode: Mode = "off"
) -> tuple[Array, Array] | None:
    """Return the change of the ELBO for every move and factor, and its standard errors.

    Errors include the variation over draws and, if rows are subsampled, over rows. Values that
    overflow because of heavy tails are NaN.

    Both have the shape ``(moves, factors)``. The result is None if the guide does not provide its
    medians or is not closed under the moves. ``x`` and ``y`` are all training rows; at most the
    first `MAX_DRAWS` draws are used.
    """
    if not _is_gaussian(guide):
        return None
    try:
        centres = guide.medians()
    except NotImplementedError:
        return None
    evaluations = 1 + len(MOVES) * len(FACTORS)
    number = int(np.clip(MAX_ENTRIES // (evaluations * len(x)), MIN_DRAWS, MAX_DRAWS))
    used = draws.first(min(number, len(draws)))
    rows = np.linspace(0, len(x) - 1, min(len(x), MAX_ENTRIES // (evaluations * len(used))))
    device = next(guide.parameters()).device
    chosen = torch.as_tensor(rows.astype(int), device=x.device)
    density = _Density(model, x[chosen].to(device), y[chosen].to(device), mode)
    supports = _supports(model, {name: value[0] for name, value in used.sites.items()})
    space = _Space(supports, used.sites, centres)
    before = density(used.sites)
    gains = np.empty((2, len(MOVES), len(FACTORS)))
    for i, move in enumerate(MOVES):
        for j, factor in enumerate(FACTORS):
            moved, volume = space.moved(move, factor)
            gains[:, i, j] = _gain(before, density(moved), volume, len(x))
    return gains[0], gains[1]


def _is_gaussian(guide: Guide) -> bool:
    """Return whether all sites are normal in unconstrained space; a full-rank guide is."""
    parts = guide.by_name().values() if isinstance(guide, Composite) else [guide]
    scaled = [[m for m in part.modules() if hasattr(m, "log_scale")] for part in parts]
    return all(isinstance(site, LocScale) for sites in scaled for site in sites) and all(
        # Families with other parameters than locations and scales have none of either kind.
        isinstance(part, FullRank) or any(isinstance(m, LocScale) for m in part.modules())
        for part in parts
    )


class _Density:
    """Log prior of draws, shape ``(draws,)``, and log-likelihoods, shape ``(draws, rows)``."""

    def __init__(self, model: BNN, x: Tensor, y: Tensor, mode: Mode) -> None:
        self.model, self.x, self.y, self.mode = model.eval(), x, y, mode

    def __call__(self, sites: dict[str, Tensor]) -> tuple[Array, Array]:
        slots = slots_of(self.model, sites)
        values = slots | statistics_of_draws(self.model, slots, self.x)
        f = network_outputs(self.model, values, self.x, mode=self.mode)
        likelihood = log_likelihood(self.model, f, slots.get("noise"), self.y)
        priors = site_log_priors(self.model, Draws(sites, slots))
        prior = torch.stack(list(priors.values())).double().sum(0)
        return prior.cpu().numpy(), likelihood.double().cpu().numpy()


class _Space:
    """Draws in unconstrained space, to which moves are applied."""

    def __init__(
        self,
        supports: Mapping[str, Constraint],
        sites: Mapping[str, Tensor],
        centres: Mapping[str, Tensor],
    ) -> None:
        self.sites = dict(sites)
        self.transforms = {name: biject_to(support) for name, support in supports.items()}
        self.values, self.centres, self.varying = {}, {}, {}
        for name, transform in self.transforms.items():
            self.values[name] = transform.inv(sites[name])
            self.centres[name] = transform.inv(centres[name]).expand_as(self.values[name][0])
            self.varying[name] = (self.values[name] != self.values[name][0]).any(0)

    def moved(self, move: Move, factor: float) -> tuple[dict[str, Tensor], Array]:
        """Return the moved draws and the log determinant of the move for every draw."""
        moved = dict(self.sites)
        volume: Array = np.zeros(len(next(iter(self.sites.values()))))
        for name, transform in self.transforms.items():
            u, centre = self.values[name], self.centres[name]
            if move == "scale":
                # Constant elements have no sd to scale.
                new = torch.where(self.varying[name], centre + factor * (u - centre), u)
                volume += float(self.varying[name].sum()) * np.log(factor)
            else:
                new = u + (factor - 1) * centre
            moved[name] = transform(new)
            stretch = transform.log_abs_det_jacobian(new, moved[name])
            stretch = stretch - transform.log_abs_det_jacobian(u, self.sites[name])
            volume += stretch.reshape(len(volume), -1).double().sum(1).cpu().numpy()
        return moved, volume


def _supports(model: BNN, values: Mapping[str, Tensor]) -> dict[str, Constraint]:
    """Return the support of every site, element by element."""
    conditioned = poutine.condition(model.sample_slots, data=dict(values))
    with pyro.validation_enabled(False), torch.no_grad():
        nodes: dict[str, Any] = dict(poutine.trace(conditioned).get_trace().nodes)
    supports = {name: nodes[name]["fn"].support for name in values}
    return {name: getattr(s, "base_constraint", s) for name, s in supports.items()}


def _gain(
    before: tuple[Array, Array], after: tuple[Array, Array], volume: Array, num_data: int
) -> tuple[float, float]:
    """Return the change of the ELBO and its standard error."""
    num_draws, num_rows = after[1].shape
    if not all(np.isfinite(part).all() for part in (*after, volume)):
        return math.nan, math.nan
    prior = after[0] - before[0] + volume
    rows = after[1] - before[1]
    change = prior + num_data / num_rows * rows.sum(1)
    variance = change.var(ddof=1) / num_draws
    if num_rows < num_data:
        left_out = 1 - num_rows / num_data
        variance += num_data**2 * rows.mean(0).var(ddof=1) / num_rows * left_out
    return float(change.mean()), float(np.sqrt(variance))
