r"""Test of uniformity on [0, 1] by simultaneous bands of the empirical distribution function.

Säilynoja, Bürkner and Vehtari (2022), *Graphical test for discrete uniformity and its applications
in goodness-of-fit evaluation and multiple sample comparison*: at a grid of points :math:`z_k` the
number of values below :math:`z_k` is :math:`\mathrm{Binomial}(n, z_k)` under uniformity. The bands
are pointwise intervals whose level :math:`\gamma` gives the desired simultaneous coverage;
:math:`\gamma` is found by simulation.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.diagnostics.finding import Finding, Level, format_number
from zoo.diagnostics.reading import SEED, Array

SOURCE = "Säilynoja, Bürkner and Vehtari (2022)"

#: Grid points of the distribution function.
MAX_POINTS = 100
#: Simulated uniform samples for the level of the band.
SIMULATIONS = 4000
#: Simultaneous coverage of the band for uniform samples.
BAND_PROBABILITY = 0.99
#: Outside the band, a larger distance of the distribution functions is a failure.
FAIL_DISTANCE = 0.2


@dataclass(frozen=True)
class Uniformity:
    """Result of a uniformity test, with the data for its plot.

    ``distance`` is the largest one between empirical and uniform distribution function on the grid
    of ``points``; ``lower`` and ``upper`` are the band.
    """

    p_value: float
    distance: float
    points: Array
    ecdf: Array
    lower: Array
    upper: Array

    @property
    def inside(self) -> bool:
        """Whether the empirical distribution function stays inside the band."""
        return bool(np.all((self.ecdf >= self.lower) & (self.ecdf <= self.upper)))


def uniformity(values: Array) -> Uniformity:
    """Test whether values in [0, 1], at least one, are uniform."""
    values = np.asarray(values, np.float64).ravel()
    if not len(values) or not np.all((values >= 0) & (values <= 1)):
        raise ValueError("uniformity needs at least one value, and all of them in [0, 1]")
    count = len(values)
    cells = max(2, min(count, MAX_POINTS))
    points = np.arange(1, cells) / cells
    below = np.searchsorted(np.sort(values), points, side="right")
    null = _null_levels(count, cells)
    level = float(np.quantile(null, 1 - BAND_PROBABILITY))
    observed = _pointwise_level(below[None], count, points)[0]
    lower = stats.binom.ppf(level / 2, count, points) / count
    upper = stats.binom.isf(level / 2, count, points) / count
    return Uniformity(
        p_value=float((1 + (null <= observed).sum()) / (1 + len(null))),
        distance=float(np.abs(below / count - points).max()),
        points=points,
        ecdf=below / count,
        lower=lower,
        upper=upper,
    )


def randomized_pit(samples: Array, y: Array) -> Array:
    r"""Return the PIT value of every observation among its predictive draws, with random ties.

    .. math:: u_i = \frac{\#\{s: y_{si} < y_i\} + v_i (1 + \#\{s: y_{si} = y_i\})}{S + 1},
        \quad v_i \sim U(0, 1)

    This is exactly uniform if :math:`y_i` and its draws are exchangeable, also for counts.
    Czado, Gneiting and Held (2009), *Predictive Model Assessment for Count Data*. `samples` have
    the shape ``(draws, rows)``.
    """
    noise = np.random.default_rng(SEED).uniform(size=len(y))
    less, equal = (samples < y).sum(0), (samples == y).sum(0)
    return np.asarray((less + noise * (1 + equal)) / (len(samples) + 1), np.float64)


def pit_finding(name: str, words: str, result: Uniformity) -> Finding:
    """Check probability integral transforms: warn outside the band, fail far outside."""
    level: Level = "ok"
    if result.p_value < 1 - BAND_PROBABILITY:
        level = "fail" if result.distance > FAIL_DISTANCE else "warn"
    state = "are consistent with" if level == "ok" else "deviate from"
    message = (
        f"{words} {state} a uniform distribution (p = {format_number(result.p_value)}, largest "
        f"distance of the distribution functions {format_number(result.distance)})."
    )
    advice = (
        "Look at the PIT plot: a hump means that predictions are too wide, a dip that they are too "
        "narrow, a slope that they are biased."
    )
    return Finding(name, level, result.p_value, 1 - BAND_PROBABILITY, message, advice, SOURCE)


@lru_cache(maxsize=32)
def _null_levels(count: int, cells: int) -> Array:
    """Return the smallest pointwise level of simulated uniform samples."""
    rng = np.random.default_rng(SEED)
    cell_counts = rng.multinomial(count, np.full(cells, 1 / cells), size=SIMULATIONS)
    below = cell_counts.cumsum(1)[:, :-1]
    return _pointwise_level(below, count, np.arange(1, cells) / cells)


def _pointwise_level(below: NDArray[np.integer], count: int, points: Array) -> Array:
    """Return for every sample the smallest two-sided tail probability over the grid."""
    low = stats.binom.cdf(below, count, points)
    high = stats.binom.sf(below - 1, count, points)
    return np.asarray(2 * np.minimum(low, high).min(1), np.float64)
