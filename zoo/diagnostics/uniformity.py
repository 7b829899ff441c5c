r"""Test of uniformity on [0, 1] by simultaneous bands of the empirical distribution function.

Säilynoja, Bürkner and Vehtari (2022), *Graphical test for discrete uniformity and its applications
in goodness-of-fit evaluation and multiple sample comparison*: at a grid of points :math:`z_k` the
number of values below :math:`z_k` is :math:`\mathrm{Binomial}(n, z_k)` under uniformity. The bands
are pointwise intervals whose level :math:`\gamma` gives the desired simultaneous coverage.

The probability to leave the bands is exact, without simulation. Under uniformity the counts of the
cells between grid points are independent Poisson variables, given that their sum is :math:`n`. The
distribution of their cumulative sum is convolved from cell to cell, and what lies outside the band
is set aside. P-values are limited by the range of numbers only.
"""

import math
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
#: Simultaneous coverage of the band for uniform samples.
BAND_PROBABILITY = 0.99
#: Smallest pointwise level; quantiles of binomials overflow far below it.
MIN_LEVEL = 1e-100
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
    lower, upper = _accepted(_band_level(count, cells), count, cells)
    return Uniformity(
        p_value=exit_probability(float(_levels(below, count, points).min()), count, cells),
        distance=float(np.abs(below / count - points).max()),
        points=points,
        ecdf=below / count,
        lower=lower / count,
        upper=upper / count,
    )


def exit_probability(level: float, count: int, cells: int) -> float:
    """Return the probability that uniform values leave the band of a pointwise level.

    Parameters
    ----------
    level
        The two-sided tail probability at or below which a point is outside.
    count
        Number of values.
    cells
        Number of cells of equal width between the grid points, at least two.
    """
    lower, upper = _accepted(level, count, cells)
    if np.any(lower > upper):
        return 1.0
    rate = count / cells
    size = min(count, math.ceil(rate + 12 * math.sqrt(rate) + 40)) + 1
    kernel = stats.poisson.pmf(np.arange(size), rate)
    inside, start, left = np.ones(1), 0, 0.0
    for cell, (low, high) in enumerate(zip(lower, upper, strict=True), start=1):
        reached = np.convolve(inside, kernel)[: count - start + 1]
        states = start + np.arange(len(reached))
        is_inside = (states >= low) & (states <= high)
        rest = stats.poisson.pmf(count - states[~is_inside], rate * (cells - cell))
        left += float(reached[~is_inside] @ rest)
        inside, start = reached[is_inside], max(start, int(low))
    return min(1.0, left / float(stats.poisson.pmf(count, count)))


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
def _band_level(count: int, cells: int) -> float:
    """Return the pointwise level of the band with the wanted coverage, a little below it."""
    low, high = math.log(1e-8), 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        is_wide_enough = exit_probability(math.exp(middle), count, cells) <= 1 - BAND_PROBABILITY
        low, high = (middle, high) if is_wide_enough else (low, middle)
    return math.exp(low)


def _accepted(
    level: float, count: int, cells: int
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the smallest and the largest count below each grid point that is inside the band."""
    points = np.arange(1, cells) / cells
    level = max(level, MIN_LEVEL)
    near = np.arange(-2, 3)[:, None]  # quantiles of discrete distributions may be off by rounding
    counts = np.clip(stats.binom.ppf(level / 2, count, points) + near, 0, count)
    is_inside = 2 * stats.binom.cdf(counts, count, points) > level
    # If even the largest of them is outside, no count is inside, and the bounds cross.
    lower = np.where(is_inside, counts, count + 1).min(0).astype(int)
    return lower, count - lower[::-1]


def _levels(below: NDArray[np.integer], count: int, points: Array) -> Array:
    """Return the two-sided tail probability of the count below every grid point.

    The grid is symmetric, so the upper tail is the lower one of the counts above; a complement
    would lose its digits.
    """
    low = stats.binom.cdf(below, count, points)
    high = stats.binom.cdf(count - below, count, points[::-1])
    return np.asarray(2 * np.minimum(low, high), np.float64)
