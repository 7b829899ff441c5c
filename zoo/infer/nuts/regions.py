r"""The regions in which chains stayed: barriers between them, and their masses.

Chains in two modes that they never left have the right shape and unknown weights. The mass of a
chain's region is estimated by bridge sampling (Meng and Wong 1996) with a normal distribution that
is fitted to the first half of the draws,

.. math:: Z = \int p(u)\,du \approx
    \frac{\frac{1}{n_2} \sum_j h(v_j) p(v_j)}{\frac{1}{n_1} \sum_i h(u_i) q(u_i)}, \qquad
    h = \frac{1}{n_1 p / Z + n_2 q},

with draws :math:`u_i` of the second half and :math:`v_j` of the normal :math:`q`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from zoo.infer.nuts.starts import ValueAndGradient, barrier

Array = NDArray[np.float64]

#: Pairs of draws whose connecting lines are followed.
NUM_LINES = 5
#: Draws per unknown for a covariance matrix.
DRAWS_PER_UNKNOWN = 3
ITERATIONS = 100


@dataclass(frozen=True)
class Regions:
    """Log masses of the regions of the chains, their errors, and barriers between pairs, in nats.

    Masses are NaN if there are too few draws for the number of unknowns.
    """

    log_mass: Array
    error: Array
    barriers: Array


def find_regions(
    function: ValueAndGradient, draws: Sequence[Array], values: Sequence[Array], seed: int
) -> Regions:
    """Return the regions of chains, from flat draws and log densities of each."""
    rng = np.random.default_rng(seed)
    masses = [log_mass(function, *pair, rng) for pair in zip(draws, values, strict=True)]
    number = len(draws)
    barriers = np.zeros((number, number))
    for i in range(number):
        for j in range(i):
            barriers[i, j] = barriers[j, i] = _lowest_barrier(function, draws[i], draws[j])
    return Regions(np.array([m for m, _ in masses]), np.array([e for _, e in masses]), barriers)


def _lowest_barrier(function: ValueAndGradient, first: Array, second: Array) -> float:
    rows = np.linspace(0, min(len(first), len(second)) - 1, NUM_LINES).astype(int)
    return min(barrier(function, first[row], second[row]) for row in rows)


def log_mass(
    function: ValueAndGradient, draws: Array, values: Array, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the logarithm of the integral of a density around draws, and its error."""
    half, size = len(draws) // 2, draws.shape[1]
    if half < DRAWS_PER_UNKNOWN * size:
        return np.nan, np.nan
    normal = stats.multivariate_normal(
        draws[:half].mean(0), np.cov(draws[:half].T), allow_singular=True
    )
    proposed = np.reshape(normal.rvs(half, random_state=rng), (half, size))
    densities = np.array([function(np.ascontiguousarray(point))[0] for point in proposed])
    densities = np.where(np.isfinite(densities), densities, -np.inf)
    rest = draws[half:]
    own = values[half:] - np.reshape(normal.logpdf(rest), len(rest))
    theirs = densities - np.reshape(normal.logpdf(proposed), half)
    return _bridge(own, theirs)


def _bridge(own: Array, theirs: Array) -> tuple[float, float]:
    """Return log mass and error from log ratios p/q at draws of p and of q."""
    logs = np.log(len(own)), np.log(len(theirs))
    estimate = float(np.median(own))
    for _ in range(ITERATIONS):
        above = special.logsumexp(theirs - np.logaddexp(logs[0] + theirs - estimate, logs[1]))
        below = special.logsumexp(-np.logaddexp(logs[0] + own - estimate, logs[1]))
        step = above - below - logs[1] + logs[0] - estimate
        estimate += step
        if abs(step) < 1e-8:
            break
    # Relative variances of both means (Frühwirth-Schnatter 2004), without autocorrelation.
    upper = np.exp(theirs - estimate - np.logaddexp(logs[0] + theirs - estimate, logs[1]))
    lower = np.exp(-np.logaddexp(logs[0] + own - estimate, logs[1]))
    parts = [part.var() / part.mean() ** 2 / len(part) for part in (upper, lower)]
    return estimate, float(np.sqrt(sum(parts)))
