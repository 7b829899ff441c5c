r"""Distances between fit and truth for predictions, log joint and identified parameters.

Distances are in units of the true standard deviation. The thresholds follow from the **actual
coverage of a 95 % interval of the fit**. For a Gaussian truth and :math:`z = 1.96`, the coverage is

* :math:`\Phi(z - d) - \Phi(-z - d)` if the mean is off by :math:`d` true sds;
* :math:`2\Phi(r z) - 1` if the sd is :math:`r` times the true one.

Coverage below `COVERAGE_WARN` is a warning and below `COVERAGE_FAIL` a failure: `SHIFT_WARN` =
0.65, `SHIFT_FAIL` = 1.11, `RATIO_WARN` = 0.84, `RATIO_FAIL` = 0.65. Intervals that are too wide by
the inverse factors have the same levels. Wasserstein distances are upper bounds of the difference
of means (Huggins et al. 2020) and use the thresholds of a shift.

Monte Carlo noise is subtracted from the distances first. The value of a finding is what is left,
which is compared with the threshold; the message has both. The errors of means and sds use the
effective sample size of the truth and hold for all columns simultaneously (Bonferroni). The noise
of Wasserstein distances is the 99 % quantile of the distance between two samples of the truth.

The log joint sums over all unknowns, identified or not, so it never fails a fit on its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray
from arviz_stats.base import array_stats
from scipy import optimize, stats
from scipy.spatial.distance import cdist

from zoo.diagnostics.finding import Finding, Level, format_number, format_share, level_of
from zoo.diagnostics.reading import (
    SEED,
    Array,
    chains,
    draws,
    identified,
    labels,
    thinned,
    variable,
    varies,
)
from zoo.errors import DataError

SOURCE = "Huggins et al. (2020); thresholds from interval coverage"
SLICED_SOURCE = "Bonneel et al. (2015); Huggins et al. (2020)"
MMD_SOURCE = "Gretton et al. (2012)"

NOMINAL = 0.95
COVERAGE_WARN = 0.90
COVERAGE_FAIL = 0.80
#: False alarm rate of a difference, over all columns of a quantity.
NOISE_PROBABILITY = 0.001
#: Smallest number of draws on either side.
MIN_DRAWS = 10
#: Largest number of draws on either side for distances that need sorting.
MAX_DRAWS = 1000
#: Random directions of the sliced distance.
DIRECTIONS = 50
#: Resampled pairs for the noise of distances.
RESAMPLINGS = 50
#: Draws on either side in the kernel test, few enough to ignore subtle differences.
MMD_DRAWS = 100
MMD_PERMUTATIONS = 999
MMD_P_VALUE = 0.005


def shift_with_coverage(coverage: float) -> float:
    """Return the shift, in true sds, at which a 95 % interval has this coverage."""
    z = stats.norm.isf((1 - NOMINAL) / 2)
    return float(
        optimize.brentq(lambda d: stats.norm.cdf(z - d) - stats.norm.cdf(-z - d) - coverage, 0, 10)
    )


def ratio_with_coverage(coverage: float) -> float:
    """Return the ratio of sds at which a 95 % interval has this coverage."""
    return float(stats.norm.isf((1 - coverage) / 2) / stats.norm.isf((1 - NOMINAL) / 2))


SHIFT_WARN, SHIFT_FAIL = shift_with_coverage(COVERAGE_WARN), shift_with_coverage(COVERAGE_FAIL)
RATIO_WARN, RATIO_FAIL = ratio_with_coverage(COVERAGE_WARN), ratio_with_coverage(COVERAGE_FAIL)


@dataclass(frozen=True)
class Pair:
    """Draws of one quantity from the fit and from the truth, of shape ``(draws, columns)``.

    ``name`` is that in findings, ``words`` that in messages; ``effective`` are the effective sample
    sizes of the columns of the truth, ``columns`` their names.
    """

    name: str
    words: str
    fit: Array
    truth: Array
    effective: Array
    columns: list[str]

    def level(self, distance: float, warn: float, fail: float) -> Level:
        """Return the level of a distance, at most ``warn`` for the log joint."""
        return level_of(distance, warn, math.inf if self.name == "log_joint" else fail)

    def samples(self, most: int) -> tuple[Array, Array]:
        """Return at most this many independent draws of fit and truth."""
        worth = max(2, round(float(np.median(self.effective))))
        return thinned(self.fit, most), thinned(self.truth, min(most, worth))


def truth_findings(tree: xarray.DataTree, truth: xarray.DataTree) -> list[Finding]:
    """Compare a fit with the truth: means, sds, Wasserstein distances, kernel test."""
    findings = []
    for pair in comparable_pairs(tree, truth):
        findings += [_mean_finding(pair), _ratio_finding(pair), _wasserstein_finding(pair)]
        if pair.fit.shape[1] > 1:
            findings += [_sliced_finding(pair), _mmd_finding(pair)]
    return findings


def comparable_pairs(tree: xarray.DataTree, truth: xarray.DataTree) -> list[Pair]:
    """Return the quantities that both trees hold, without columns that are constant in the truth.

    These are the identified functions of the network at fixed inputs, the log joint, and the
    parameters listed in the root attribute ``identified``.
    """
    named = [("posterior", name) for name in identified(tree)]
    found = [
        _pair(tree, truth, "functions", "the predicted functions", [("functions", "f")]),
        _pair(tree, truth, "log_joint", "the log joint", [("sample_stats", "lp")]),
        _pair(tree, truth, "parameters", "the parameters", named),
    ]
    return [pair for pair in found if pair is not None]


def effective_draws(values: Array) -> Array:
    """Return the ESS of every column of ``(chain, draw, column)``, at most the number of draws."""
    chains_, count, columns = values.shape
    total = float(chains_ * count)
    if count < 4:
        return np.full(columns, total)
    worth = array_stats.ess(values, 0, 1, method="bulk")
    return np.asarray(np.clip(np.nan_to_num(worth, nan=1.0), 1.0, total))


def distances(fit: Array, truth: Array) -> Array:
    """Return the 1-D Wasserstein distance of every column, in true standard deviations."""
    levels = (np.arange(max(len(fit), len(truth))) + 0.5) / max(len(fit), len(truth))
    ours, theirs = (np.sort(side.T)[:, (levels * len(side)).astype(int)] for side in (fit, truth))
    return np.asarray(np.abs(ours - theirs).mean(1) / truth.std(0), np.float64)


def sliced_distance(fit: Array, truth: Array) -> float:
    """Return the mean distance of projections on random directions.

    Columns are standardised first, and every projection is measured in its own true standard
    deviation.
    """
    rng = np.random.default_rng(SEED)
    scale = truth.std(0)
    directions = rng.normal(size=(fit.shape[1], DIRECTIONS)) / scale[:, None]
    return float(distances(fit @ directions, truth @ directions).mean())


def kernel_test(fit: Array, truth: Array) -> tuple[float, float]:
    r"""Return the squared maximum mean discrepancy and its permutation p-value.

    Unbiased estimate with the kernel :math:`\exp(-|x - y|^2 / 2 h^2)`, :math:`h` the median
    distance of all pairs, columns in true standard deviations.
    """
    both = np.concatenate([fit, truth]) / truth.std(0)
    squared = cdist(both, both, "sqeuclidean")
    bandwidth = np.median(squared[np.triu_indices(len(both), 1)])
    if bandwidth <= 0:
        bandwidth = 1.0
    kernel = np.exp(-squared / (2 * bandwidth))
    np.fill_diagonal(kernel, 0.0)
    first, second = len(fit), len(truth)
    rng = np.random.default_rng(SEED)
    member = np.zeros((MMD_PERMUTATIONS + 1, len(both)))
    member[0, :first] = 1.0
    for row in member[1:]:
        row[rng.permutation(len(both))[:first]] = 1.0
    inside = np.einsum("ij,ij->i", member @ kernel, member)
    outside = np.einsum("ij,ij->i", (1 - member) @ kernel, 1 - member)
    across = np.einsum("ij,ij->i", member @ kernel, 1 - member)
    values = (
        inside / (first * (first - 1))
        + outside / (second * (second - 1))
        - 2 * across / (first * second)
    )
    # The first row is the true labelling; a tie must not count as smaller because of rounding.
    p_value = float((values >= values[0] - 1e-12).mean())
    return float(values[0]), p_value


def _pair(
    tree: xarray.DataTree,
    truth: xarray.DataTree,
    name: str,
    words: str,
    places: list[tuple[str, str]],
) -> Pair | None:
    fits, truths, columns = [], [], []
    for group, key in places:
        arrays = variable(tree, group, key), variable(truth, group, key)
        if arrays[0] is None or arrays[1] is None:
            continue
        ours, theirs = draws(arrays[0]), chains(arrays[1])
        if ours.shape[-1] != theirs.shape[-1]:
            raise DataError(
                f"{group}/{key} has {ours.shape[-1]} numbers per draw in the fit and "
                f"{theirs.shape[-1]} in the truth; they must be the same quantities"
            )
        names = labels(arrays[0])
        if group == "functions" and names != labels(arrays[1]):
            raise DataError(
                f"the functions of the fit, such as {names[0]}, are not those of the truth, such "
                f"as {labels(arrays[1])[0]}: one was stored by an earlier version. Fit again."
            )
        fits.append(ours)
        truths.append(theirs)
        columns += names
    if not fits:
        return None
    fit, chained = np.concatenate(fits, -1), np.concatenate(truths, -1)
    flat = chained.reshape(-1, chained.shape[-1])
    keep = np.isfinite(fit).all(0) & varies(flat)
    if not keep.any() or min(len(fit), len(flat)) < MIN_DRAWS:
        return None
    exact = truth.attrs.get("kind") == "exact"
    worth = np.full(keep.sum(), len(flat)) if exact else effective_draws(chained[..., keep])
    names = [column for column, kept in zip(columns, keep, strict=True) if kept]
    return Pair(name, words, fit[:, keep], flat[:, keep], worth, names)


def _noise_quantile(pair: Pair) -> Array:
    """Return the simultaneous noise quantile of all columns, in standard errors."""
    freedom = np.minimum(pair.effective, len(pair.fit)) - 1
    tail = NOISE_PROBABILITY / (2 * len(pair.columns))
    return np.asarray(stats.t.isf(tail, np.maximum(freedom, 1)), np.float64)


def _shift_finding(
    pair: Pair, check: str, value: float, noise: float, message: str, source: str = SOURCE
) -> Finding:
    """Check a distance in true sds, from which its Monte Carlo noise is subtracted."""
    left = max(value - noise, 0.0)
    if noise > 0:
        message += _what_is_left(left, f"the distance is at least {format_number(left)}")
    level = pair.level(left, SHIFT_WARN, SHIFT_FAIL)
    advice = "Train longer. If this does not help, use a richer guide or sample with NUTS."
    return Finding(f"truth.{pair.name}.{check}", level, left, SHIFT_WARN, message, advice, source)


def _what_is_left(left: float, words: str, threshold: float = SHIFT_WARN) -> str:
    """Return the sentence about a difference from which Monte Carlo noise is subtracted."""
    if left <= 0:
        return " This is within Monte Carlo noise."
    return f" Without Monte Carlo noise {words} (threshold: {format_number(threshold)})."


def _mean_finding(pair: Pair) -> Finding:
    scale = pair.truth.std(0, ddof=1)
    shift = np.abs(pair.fit.mean(0) - pair.truth.mean(0)) / scale
    spread = pair.fit.std(0, ddof=1) / scale
    error = np.sqrt(1 / pair.effective + spread**2 / len(pair.fit))
    noise = _noise_quantile(pair) * error
    k = int((shift - noise).argmax())
    message = (
        f"Means of {pair.words} differ by up to {format_number(float(shift[k]))} ± "
        f"{format_number(float(error[k]))} true sds (at {pair.columns[k]}), with a median of "
        f"{format_number(float(np.median(shift)))}."
    )
    return _shift_finding(pair, "mean", float(shift[k]), float(noise[k]), message)


def _ratio_finding(pair: Pair) -> Finding:
    with np.errstate(divide="ignore"):
        log_ratio = np.log(pair.fit.std(0, ddof=1)) - np.log(pair.truth.std(0, ddof=1))
    # The relative variance of a sample variance is (kurtosis - 1) / n; for an sd half its root.
    # Few draws of a skewed quantity, such as a small probability, have a kurtosis that is too low.
    known = _variance_noise(pair.truth)
    own = np.maximum(_variance_noise(pair.fit), known)
    error = 0.5 * np.sqrt(own / len(pair.fit) + known / pair.effective)
    beyond = np.abs(log_ratio) - _noise_quantile(pair) * error
    k = int(beyond.argmax())
    level = pair.level(float(beyond[k]), -np.log(RATIO_WARN), -np.log(RATIO_FAIL))
    ratio = float(np.exp(log_ratio[k]))
    left = float(np.exp(np.sign(log_ratio[k]) * max(beyond[k], 0.0)))
    threshold = RATIO_WARN if ratio < 1 else 1 / RATIO_WARN
    typical = float(np.exp(np.median(log_ratio)))
    coverage = float(2 * stats.norm.cdf(1.96 * ratio) - 1)
    effect = f" and a 95 % interval covers about {format_share(coverage)}" if level != "ok" else ""
    message = (
        f"Sds of {pair.words} differ most at {pair.columns[k]}, where they are "
        f"{format_number(ratio)} times the true ones{effect}. The median ratio is "
        f"{format_number(typical)}."
    )
    bound = "at most" if ratio < 1 else "at least"
    message += _what_is_left(
        float(beyond[k]), f"the ratio is {bound} {format_number(left)}", threshold
    )
    advice = "Train longer, or use smaller initial scales: the guide is wider than the posterior."
    if ratio < 1:
        advice = (
            "Use a full-rank or low-rank guide: the guide is overconfident, as factorised guides "
            "are when unknowns are correlated."
        )
    return Finding(f"truth.{pair.name}.sd", level, left, threshold, message, advice, SOURCE)


def _variance_noise(values: Array) -> Array:
    """Return kurtosis - 1, at least that of a Gaussian: short samples underestimate it."""
    centred = values - values.mean(0)
    variance = (centred**2).mean(0)
    kurtosis = np.divide(
        (centred**4).mean(0), variance**2, out=np.full(len(variance), 3.0), where=variance > 0
    )
    return np.asarray(np.maximum(kurtosis - 1, 2.0), np.float64)


def _wasserstein_finding(pair: Pair) -> Finding:
    fit, truth = pair.samples(MAX_DRAWS)
    values = distances(fit, truth)
    k = int(values.argmax())
    noise = 0.0
    if values[k] > SHIFT_WARN:
        noise = _noise(truth, len(fit), lambda a, b: float(distances(a, b).max()))
    message = (
        f"Wasserstein distances of {pair.words} are up to {format_number(float(values[k]))} true "
        f"sds (at {pair.columns[k]}), with a median of {format_number(float(np.median(values)))}."
    )
    return _shift_finding(pair, "wasserstein", float(values[k]), noise, message)


def _sliced_finding(pair: Pair) -> Finding:
    fit, truth = pair.samples(MAX_DRAWS)
    value = sliced_distance(fit, truth)
    noise = _noise(truth, len(fit), sliced_distance) if value > SHIFT_WARN else 0.0
    message = (
        f"The joint sliced Wasserstein distance of {pair.words} is {format_number(value)} true sds "
        "of a random projection."
    )
    return _shift_finding(pair, "sliced_wasserstein", value, noise, message, SLICED_SOURCE)


def _mmd_finding(pair: Pair) -> Finding:
    fit, truth = pair.samples(MMD_DRAWS)
    value, p_value = kernel_test(fit, truth)
    differ = p_value < MMD_P_VALUE
    ending = "differ" if differ else "do not differ"
    message = (
        f"In a joint kernel two-sample test of {pair.words}, {len(fit)} draws of the fit and "
        f"{len(truth)} of the truth {ending} significantly (squared MMD {format_number(value)}, "
        f"p = {format_number(p_value)})."
    )
    level: Level = "warn" if differ else "ok"
    advice = "Check which means and sds differ, and whether by a relevant amount."
    name = f"truth.{pair.name}.mmd"
    return Finding(name, level, p_value, MMD_P_VALUE, message, advice, MMD_SOURCE)


def _noise(truth: Array, num_fit: int, statistic: Callable[[Array, Array], float]) -> float:
    """Return the 99 % quantile of the distance between two samples of the truth."""
    rng = np.random.default_rng(SEED)

    def sample(size: int) -> Array:
        return truth[rng.integers(len(truth), size=size)]

    values = [statistic(sample(num_fit), sample(len(truth))) for _ in range(RESAMPLINGS)]
    return float(np.quantile(values, 0.99))
