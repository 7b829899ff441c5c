r"""Simulation-based calibration: tests of the uniformity of ranks.

Draw :math:`\theta^* \sim p(\theta)`, data :math:`y \sim p(y \mid \theta^*)`, then :math:`L` draws
of the posterior. The rank of :math:`\theta^*` among them is uniform on :math:`0, \ldots, L` if
posterior and model agree (Talts et al. 2018). Too many ranks at both ends mean that posteriors are
too narrow, in the middle too wide, on one side biased.

Three tests look at the ranks of a quantity: their mean (bias), their spread around the middle
(width), and the empirical distribution function with simultaneous bands (any other shape). The
first two are the first components of Neyman's smooth test (1937), whose power against shifted and
wrongly scaled posteriors is higher than that of the bands.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from zoo.diagnostics.finding import Finding, format_number, level_of
from zoo.diagnostics.reading import SEED, Array
from zoo.diagnostics.uniformity import SOURCE as BAND_SOURCE
from zoo.diagnostics.uniformity import Uniformity, uniformity

SOURCE = f"Talts et al. (2018); {BAND_SOURCE}; Neyman (1937)"

#: Probability of a warning, or a failure, for any quantity of a correct posterior.
P_WARN, P_FAIL = 0.01, 0.001
#: Share of simulations without a posterior above which inference has failed.
MAX_FAILED = 0.05
#: Largest number of bins of a histogram, and ranks expected in each of them.
MAX_BINS, MIN_EXPECTED = 20, 10
#: Share of the ranks at each end; the true values between them are counted as covered.
TAIL = 0.05
TESTS = 3


@dataclass(frozen=True)
class RankTest:
    """Uniformity tests of the ranks of one quantity, with the data for their plots.

    Attributes
    ----------
    counts, expected
        Observed and expected counts in the bins of the histogram.
    below, above
        Numbers of true values below and above the central 90 % of the draws.
    outside
        The number of both together that is expected.
    mean_p, spread_p
        P-values of the mean of the ranks and of their spread around the middle.
    bias, spread
        The statistics of both tests in units of their standard deviations. A positive bias means
        high ranks, a positive spread too many ranks at both ends.
    ecdf
        The test by simultaneous bands.
    """

    counts: NDArray[np.int_]
    expected: Array
    below: int
    above: int
    outside: float
    mean_p: float
    spread_p: float
    bias: float
    spread: float
    ecdf: Uniformity

    @property
    def p_value(self) -> float:
        """The smallest of the three p-values, corrected for their number."""
        return min(1.0, TESTS * min(self.mean_p, self.spread_p, self.ecdf.p_value))

    @property
    def num_simulations(self) -> int:
        """The number of ranks."""
        return int(self.counts.sum())

    @property
    def shape(self) -> str:
        """What the largest deviation of the ranks says about the posteriors."""
        if min(self.mean_p, self.spread_p) > P_WARN:  # only the bands may object
            return "of another shape"
        if self.mean_p < self.spread_p:
            return "biased, too low" if self.bias > 0 else "biased, too high"
        return "too narrow" if self.spread > 0 else "too wide"


def rank_test(ranks: NDArray[np.integer], num_draws: int) -> RankTest:
    """Test the ranks of one quantity, one per simulation, between 0 and `num_draws`."""
    ranks = np.asarray(ranks)
    if ranks.ndim != 1 or not len(ranks):
        raise ValueError(f"ranks have shape {ranks.shape}; one number per simulation is needed")
    if ranks.min() < 0 or ranks.max() > num_draws:
        raise ValueError(
            f"ranks go from {ranks.min()} to {ranks.max()}; with {num_draws} draws they lie "
            f"between 0 and {num_draws}"
        )
    bins = int(np.clip(len(ranks) // MIN_EXPECTED, 1, min(MAX_BINS, num_draws + 1)))
    # If ranks do not divide evenly into bins, expected counts differ.
    bin_of_rank = np.arange(num_draws + 1) * bins // (num_draws + 1)
    # A random position within each rank makes the discrete distribution continuous.
    noise = np.random.default_rng(SEED).uniform(size=len(ranks))
    positions = np.arange(num_draws + 1) - num_draws / 2
    tail = int(TAIL * (num_draws + 1))
    mean_p, bias = mean_test(positions, positions[ranks])
    spread_p, spread = mean_test(positions**2, positions[ranks] ** 2)
    return RankTest(
        counts=np.bincount(bin_of_rank[ranks], minlength=bins),
        expected=np.bincount(bin_of_rank, minlength=bins) * len(ranks) / (num_draws + 1),
        below=int((ranks < tail).sum()),
        above=int((ranks > num_draws - tail).sum()),
        outside=2 * tail * len(ranks) / (num_draws + 1),
        mean_p=mean_p,
        spread_p=spread_p,
        bias=bias,
        spread=spread,
        ecdf=uniformity((ranks + noise) / (num_draws + 1)),
    )


def mean_test(values: Array, observed: Array) -> tuple[float, float]:
    r"""Test the mean of independent draws from equally probable values.

    The tail probability is the saddlepoint approximation of Lugannani and Rice (1980), whose
    relative error stays small far out in the tails, where a normal approximation is wrong by
    factors.

    Returns
    -------
    tuple of float
        The two-sided p-value, and the deviation in standard deviations of the mean.
    """
    scale = float(values.std())
    if scale == 0:
        return 1.0, 0.0
    count = len(observed)
    support = (np.asarray(values, np.float64) - values.mean()) / scale
    mean = (float(np.mean(observed)) - float(values.mean())) / scale
    deviation = mean * math.sqrt(count)
    if mean < 0:
        support, mean = -support, -mean
    # The mean of as many draws cannot be larger; at the boundary the saddlepoint is infinite.
    mean = min(mean, float(support.max()) * (1 - 1e-9))
    if abs(deviation) < 1e-3:
        return 1.0, deviation
    return min(1.0, 2 * _upper_tail(support, mean, count)), deviation


def _upper_tail(support: Array, mean: float, count: int) -> float:
    def slope(t: float) -> float:
        return float(special.softmax(t * support) @ support)

    high = 1.0
    while slope(high) < mean and high < 1e12:
        high *= 2
    t = float(optimize.brentq(lambda t: slope(t) - mean, 0.0, high))
    weights = special.softmax(t * support)
    variance = float(weights @ (support - mean) ** 2)
    cumulant = float(special.logsumexp(t * support)) - math.log(len(support))
    w = math.sqrt(max(0.0, 2 * count * (t * mean - cumulant)))
    u = t * math.sqrt(count * variance)
    if w == 0 or u == 0:
        return 0.5
    log_ratio = float(stats.norm.logpdf(w) - stats.norm.logsf(w))
    # The sum of both terms of the formula, with the tail as a factor, so that nothing cancels.
    factor = 1 + math.exp(log_ratio) * (1 / u - 1 / w)
    return float(np.clip(stats.norm.sf(w) * factor, 0.0, 0.5))


def sbc_findings(
    ranks: Mapping[str, NDArray[np.integer]], num_draws: int
) -> tuple[list[Finding], dict[str, RankTest]]:
    """Check the ranks of quantities by name; also return the tests with the data for plots."""
    tests = {name: rank_test(values, num_draws) for name, values in ranks.items()}
    return [_finding(name, test, len(tests)) for name, test in tests.items()], tests


def failure_finding(failed: int, total: int) -> Finding:
    """Judge the number of simulated data sets for which there is no posterior."""
    check = "sbc.failed_fits"
    share = failed / total
    if not failed:
        return Finding(check, "ok", 0.0, 0.0, f"All {total} simulated data sets could be fitted.")
    message = (
        f"Training diverged on {failed} of {total} data sets simulated from the prior. Ranks are "
        "those of the others, so that they say nothing about these."
    )
    advice = "Use a smaller learning rate, gradient clipping or float64, or a narrower prior."
    level = level_of(share, 0.0, MAX_FAILED)
    return Finding(check, level, share, 0.0, message, advice, "Talts et al. (2018)")


def discarded_finding(discarded: int, kept: int, max_scale: float) -> Finding:
    """Report the number of simulated data sets that were too large."""
    message = (
        f"{discarded} of {discarded + kept} data sets simulated from the prior were discarded: "
        f"their largest number was more than {format_number(max_scale)} times that of the data. "
        "The choice depends on the data alone, so ranks of a correct posterior stay uniform."
    )
    share = discarded / (discarded + kept)
    return Finding("sbc.discarded", "info", share, None, message, "", "Modrák et al. (2023)")


def unranked_finding(total: int, largest: int) -> Finding:
    """Report that not all parameters have ranks."""
    message = f"At most {largest} of {total} parameters have ranks, spread over all of them."
    return Finding("sbc.unranked", "info", float(total), float(largest), message)


def point_finding(names: Sequence[str]) -> Finding:
    """Report the parameters without a prior, which are not simulated."""
    message = (
        f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} has no prior. All simulations "
        "use its value in a fit to the data, fits estimate it anew, and it has no rank."
    )
    return Finding("sbc.points", "info", float(len(names)), None, message)


def _finding(name: str, test: RankTest, count: int) -> Finding:
    p_value = min(1.0, count * test.p_value)
    level = level_of(-p_value, -P_WARN, -P_FAIL)
    total = test.num_simulations
    meaning, advice = _meaning(name, test)
    result = "are consistent with uniform ones" if level == "ok" else f"are not uniform, {meaning}"
    message = (
        f"{name}: ranks {result} (p = {format_number(p_value)} after correction for {count} "
        f"quantities). {test.below + test.above} of {total} true values lie outside the central "
        f"{100 - 200 * TAIL:.0f} % of the draws, {test.below} below and {test.above} above; "
        f"{format_number(test.outside)} are expected."
    )
    return Finding(_check(name), level, p_value, P_WARN, message, advice, SOURCE)


def _check(name: str) -> str:
    """Return the name of the check: parameters and functions speak for different uses."""
    if name == "log_likelihood":
        return f"sbc.{name}"
    return f"sbc.{'functions' if name.startswith('output[') else 'parameters'}.{name}"


def _meaning(name: str, test: RankTest) -> tuple[str, str]:
    """Return what ranks that are not uniform mean, and what to do."""
    worse = "posterior draws explain the data worse than the true values"
    better = "posterior draws explain the data better than the true values"
    if name == "log_likelihood" and test.shape == "biased, too low":
        return worse, "Train longer; if that does not help, use a richer guide, such as full_rank."
    if name == "log_likelihood" and test.shape == "biased, too high":
        return better, "Use a richer guide, such as full_rank: draws are too close to the best fit."
    return f"posteriors are {test.shape}", {
        "too narrow": "Use a richer guide, such as full_rank; if it is rich enough, train longer.",
        "too wide": "Train longer, or use a richer guide.",
        "biased, too low": "Train longer, and check model and guide.",
        "biased, too high": "Train longer, and check model and guide.",
        "of another shape": "Look at the plot of the ranks, and use a richer guide.",
    }[test.shape]
