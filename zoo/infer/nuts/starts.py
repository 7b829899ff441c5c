r"""Dispersed starting points of chains, by short optimisation paths.

Chains that start close together agree even if they all miss a mode. Paths of L-BFGS therefore lead
from points far apart (draws of the prior, uniform points, draws of a fit, spread out) to the modes
around them. As in Pathfinder (Zhang et al. 2022), the point of a path where a normal approximation
has the highest ELBO is kept: the end of a path may be a spike without mass. Paths whose ends are
not separated by a barrier belong to one group, and the chains are spread over the groups.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from zoo.errors import ZooError

Array = NDArray[np.float64]
#: A function of one point that returns the log density and its gradient.
ValueAndGradient = Callable[[Array], tuple[float, Array]]

#: Half-width of the uniform jitter around given values, and number of attempts.
JITTER = 1.0
MAX_TRIES = 100
#: Half-width of the uniform starting points of paths, as in Stan.
WIDTH = 2.0
#: Factor by which draws of a fit are spread around their mean.
SPREAD = 3.0
#: Largest number of steps of a path, and draws for an ELBO.
MAX_STEPS = 100
ELBO_DRAWS = 5
#: Bounds of the scales of a normal approximation.
SCALES = (1e-6, 1e3)
#: Points on the line between two others, and drop in nats that separates them.
LINE_POINTS = 16
BARRIER = 3.0
#: Groups whose ELBO is lower than the best by more than this, and half the number of unknowns, are
#: not sampled.
NEGLIGIBLE_NATS = 10.0


def num_paths(size: int) -> int:
    """Return the number of paths for a number of unknowns."""
    return 64 if size <= 50 else 32 if size <= 200 else 16


def jittered(function: ValueAndGradient, centre: Array, seed: int) -> Array:
    """Return a point around a centre at which density and gradient are finite."""
    rng = np.random.default_rng(seed)
    for _ in range(MAX_TRIES):
        point: Array = centre + rng.uniform(-JITTER, JITTER, len(centre))
        if _is_finite(*function(point)):
            return point
    raise ZooError(
        f"the log density is not finite at any of {MAX_TRIES} initial points. Check that the "
        "observations are in the support of their distribution, or give a starting value (init)."
    )


def _is_finite(value: float, slope: Array) -> bool:
    return math.isfinite(value) and bool(np.isfinite(slope).all())


@dataclass(frozen=True)
class Path:
    """A path: its end, and the draws of the best normal approximation on it, the best first."""

    end: Array
    draws: Array
    elbo: float


def spread_out(points: Array) -> Array:
    """Return points with larger distances from their mean."""
    centre = points.mean(0)
    spread: Array = centre + SPREAD * (points - centre)
    return spread


def follow(function: ValueAndGradient, start: Array, rng: np.random.Generator) -> Path | None:
    """Follow L-BFGS uphill; None if the density is not finite at the start."""
    value, slope = function(start)
    if not _is_finite(value, slope):
        return None
    noise = rng.standard_normal((ELBO_DRAWS, len(start)))
    steps = _Steps(function, start, slope)

    def objective(point: Array) -> tuple[float, Array]:
        found, gradient = function(point)
        if not _is_finite(found, gradient):
            return math.inf, np.zeros_like(point)
        steps.seen = (point.copy(), gradient)
        return -found, -gradient

    with np.errstate(all="ignore"):
        optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=steps.note,
            options={"maxiter": MAX_STEPS, "maxcor": 6},
        )
        approximations = [(start, np.ones_like(start))] if not steps.found else steps.found
        paths = [_approximation(function, *pair, noise) for pair in approximations]
    best = max(paths, key=lambda path: path.elbo)
    return Path(approximations[-1][0], best.draws, best.elbo) if best.elbo > -math.inf else None


class _Steps:
    """Points of a path, with scales from the changes of the gradient.

    The update is that of the diagonal of an inverse Hessian of Gilbert and Lemaréchal (1989).
    """

    def __init__(self, function: ValueAndGradient, start: Array, slope: Array) -> None:
        self.point, self.slope = start, slope
        self.seen = (start, slope)
        self.variances = np.ones_like(start)
        self.found: list[tuple[Array, Array]] = []

    def note(self, *_: Any) -> None:
        """Note the last point that was evaluated."""
        point, slope = self.seen
        step, change, v = point - self.point, self.slope - slope, self.variances
        b = float(change @ step)
        if b > 1e-12 * float(change @ change):
            a, c = float(change @ (v * change)), float(step @ (step / v))
            updated = 1 / (a / (b * v) + change**2 / b - a * step**2 / (b * c * v**2))
            good = np.isfinite(updated) & (updated > 0)
            self.variances = np.where(good, updated, v).clip(SCALES[0] ** 2, SCALES[1] ** 2)
        self.point, self.slope = point, slope
        self.found.append((point, np.sqrt(self.variances)))


def _approximation(function: ValueAndGradient, centre: Array, scale: Array, noise: Array) -> Path:
    draws = centre + scale * noise
    values = np.array([function(draw)[0] for draw in draws])
    order = np.argsort(np.where(np.isfinite(values), -values, np.inf))
    elbo = values.mean() + np.log(scale).sum() if np.isfinite(values).all() else -math.inf
    return Path(centre, draws[order], float(elbo))


def barrier(function: ValueAndGradient, first: Array, second: Array) -> float:
    """Return by how many nats the log density drops on the line between two points.

    The drop is below the lower end. A concave log density has none.
    """
    shares = np.linspace(0, 1, LINE_POINTS + 2)
    values = [function(np.asarray(first + share * (second - first)))[0] for share in shares]
    inner = np.where(np.isfinite(values[1:-1]), values[1:-1], -np.inf)
    return max(0.0, float(min(values[0], values[-1]) - inner.min()))


def group(function: ValueAndGradient, paths: Sequence[Path], max_groups: int) -> list[list[Path]]:
    """Collect paths that end in the same mode, the best group first."""
    groups: list[list[Path]] = []
    margin = NEGLIGIBLE_NATS + len(paths[0].end) / 2 if paths else 0.0
    for path in sorted(paths, key=lambda path: -path.elbo):
        if groups and path.elbo < groups[0][0].elbo - margin:
            break
        for members in groups:
            if barrier(function, members[0].end, path.end) < BARRIER:
                members.append(path)
                break
        else:
            if len(groups) < max_groups:
                groups.append([path])
    return groups


def choose(groups: Sequence[Sequence[Path]], num_chains: int) -> list[Array]:
    """Return one start for each chain, spread over the groups, then over the paths of each."""
    starts = []
    for chain in range(num_chains):
        members = groups[chain % len(groups)]
        turn = chain // len(groups)
        path = members[turn % len(members)]
        starts.append(path.draws[(turn // len(members)) % ELBO_DRAWS])
    return starts
