r"""Simulation-based calibration: test of the uniformity of ranks.

Draw :math:`\theta^* \sim p(\theta)`, data :math:`y \sim p(y \mid \theta^*)`, then :math:`L` draws
of the posterior. The rank of :math:`\theta^*` among them is uniform on :math:`0, \ldots, L` if and
only if posterior and model agree (Talts et al. 2018). Too many ranks at both ends mean that
posteriors are too narrow, in the middle too wide, on one side biased.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.diagnostics.finding import Finding, format_number, level_of
from zoo.diagnostics.reading import SEED, Array
from zoo.diagnostics.uniformity import SOURCE as BAND_SOURCE
from zoo.diagnostics.uniformity import Uniformity, uniformity

SOURCE = f"Talts et al. (2018); {BAND_SOURCE}"

#: Probability of a warning, or a failure, for any parameter of a correct posterior.
P_WARN, P_FAIL = 0.01, 0.001
#: Ranks expected in every bin of the chi-square test (Cochran 1954 asks for five).
MIN_EXPECTED = 5
MAX_BINS = 20


@dataclass(frozen=True)
class RankTest:
    """Uniformity tests of the ranks of one parameter, with the data for their plots.

    ``counts`` and ``expected`` are those of the bins of the histogram, ``ecdf`` is the test by
    simultaneous bands.
    """

    counts: NDArray[np.int_]
    expected: Array
    chi_square_p: float
    ecdf: Uniformity

    @property
    def p_value(self) -> float:
        """The smaller of both p-values, corrected for two tests."""
        return min(1.0, 2 * min(self.chi_square_p, self.ecdf.p_value))


def rank_test(ranks: NDArray[np.integer], num_draws: int) -> RankTest:
    """Test the ranks of one parameter, one per simulation, between 0 and `num_draws`."""
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
    counts = np.bincount(bin_of_rank[ranks], minlength=bins)
    expected = np.bincount(bin_of_rank, minlength=bins) * len(ranks) / (num_draws + 1)
    p_value = float(stats.chisquare(counts, expected).pvalue) if bins > 1 else 1.0
    # A random position within each rank makes the discrete distribution continuous.
    noise = np.random.default_rng(SEED).uniform(size=len(ranks))
    return RankTest(counts, expected, p_value, uniformity((ranks + noise) / (num_draws + 1)))


def sbc_findings(
    ranks: Mapping[str, NDArray[np.integer]], num_draws: int
) -> tuple[list[Finding], dict[str, RankTest]]:
    """Check the ranks of parameters by name; also return the tests with the data for plots."""
    tests = {name: rank_test(values, num_draws) for name, values in ranks.items()}
    return [_finding(name, test, len(tests)) for name, test in tests.items()], tests


def _finding(name: str, test: RankTest, count: int) -> Finding:
    p_value = min(1.0, count * test.p_value)
    level = level_of(-p_value, -P_WARN, -P_FAIL)
    message = (
        f"Ranks of {name} in {int(test.counts.sum())} simulations: chi-square p = "
        f"{format_number(test.chi_square_p)}, ECDF band p = {format_number(test.ecdf.p_value)}; "
        f"corrected for {count} parameters p = {format_number(p_value)}."
    )
    return Finding(f"sbc.{name}", level, p_value, P_WARN, message, _advice(test), SOURCE)


def _advice(test: RankTest) -> str:
    """Interpret the shape of the ranks: too many at both ends, in the middle, or on one side."""
    deviation = test.ecdf.ecdf - test.ecdf.points
    left = float(deviation[test.ecdf.points < 0.5].mean()) if len(deviation) > 2 else 0.0
    right = float(deviation[test.ecdf.points > 0.5].mean()) if len(deviation) > 2 else 0.0
    if left > 0 > right:
        return "Use a richer guide: too many ranks at both ends, posteriors are too narrow."
    if left < 0 < right:
        return "Train longer: too many ranks in the middle, posteriors are too wide."
    side = "low" if left + right > 0 else "high"
    return f"Check model and guide, and train longer: too many {side} ranks, posteriors are biased."
