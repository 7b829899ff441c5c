r"""How far is the fit from the truth? Distances for predictions, log joint, identified parameters.

Every distance is in units of the true standard deviation, and every threshold follows from one
question: **what does a 95 % interval of the fit really cover?** For a Gaussian truth

* a mean that is off by :math:`d` true sds leaves
  :math:`\Phi(z - d) - \Phi(-z - d)` of :math:`z = 1.96`;
* sds that are :math:`r` times the true ones leave :math:`2\Phi(r z) - 1`.

Coverage under `COVERAGE_WARN` is a warning, under `COVERAGE_FAIL` a failure: `SHIFT_WARN` = 0.65,
`SHIFT_FAIL` = 1.11, `RATIO_WARN` = 0.84, `RATIO_FAIL` = 0.65; intervals that are too wide by the
inverse factors are judged alike. Wasserstein distances bound the difference of means from above
(Huggins et al. 2020), and are held against the thresholds of a shift.

Monte Carlo noise is taken off before a distance is judged: errors of means and sds count the
truth's effective draws and hold for all columns at once (Bonferroni), and the noise of
distances is the 99 % quantile of what two samples of the truth give.

The log joint sums over all unknowns, identified or not, so it never fails a fit on its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray
from arviz_stats.base import array_stats
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.spatial.distance import cdist

from zoo.diagnostics.finding import Finding, Level, format_number, format_share
from zoo.diagnostics.reading import (
    SEED,
    Array,
    chains,
    draws,
    identified,
    is_constant,
    labels,
    variable,
)
from zoo.errors import DataError

SOURCE = "Huggins et al. (2020); thresholds from interval coverage"
SLICED_SOURCE = "Bonneel et al. (2015); Huggins et al. (2020)"
MMD_SOURCE = "Gretton et al. (2012)"

NOMINAL = 0.95
COVERAGE_WARN = 0.90
COVERAGE_FAIL = 0.80
#: Probability that pure noise is taken for a difference, over all columns of a quantity.
NOISE_PROBABILITY = 0.001
#: Draws of either side below which nothing can be said.
MIN_DRAWS = 10
#: Most draws of either side in distances that are computed by sorting.
MAX_DRAWS = 1000
#: Random directions of the sliced distance.
DIRECTIONS = 50
#: Resampled pairs behind the noise of distances.
RESAMPLINGS = 50
#: Draws of either side in the kernel test: differences that so few draws show are not subtle.
MMD_DRAWS = 100
MMD_PERMUTATIONS = 999
MMD_P_VALUE = 0.005


def shift_with_coverage(coverage: float) -> float:
    """Return the shift, in true sds, that leaves a 95 % interval this coverage."""
    z = stats.norm.isf((1 - NOMINAL) / 2)
    return float(
        optimize.brentq(lambda d: stats.norm.cdf(z - d) - stats.norm.cdf(-z - d) - coverage, 0, 10)
    )


def ratio_with_coverage(coverage: float) -> float:
    """Return the ratio of sds that leaves a 95 % interval this coverage."""
    return float(stats.norm.isf((1 - coverage) / 2) / stats.norm.isf((1 - NOMINAL) / 2))


SHIFT_WARN, SHIFT_FAIL = shift_with_coverage(COVERAGE_WARN), shift_with_coverage(COVERAGE_FAIL)
RATIO_WARN, RATIO_FAIL = ratio_with_coverage(COVERAGE_WARN), ratio_with_coverage(COVERAGE_FAIL)


@dataclass(frozen=True)
class Pair:
    """Draws of one quantity by the fit and by the truth, column by column.

    Parameters
    ----------
    name
        What the quantity is called in findings: ``functions``, ``log_joint``, ``parameters``.
    words
        How messages call it.
    fit, truth
        Shapes ``(draws, columns)``.
    effective
        Independent draws that every column of the truth is worth.
    columns
        Names of the columns.
    worst
        The most serious level this quantity may give.
    """

    name: str
    words: str
    fit: Array
    truth: Array
    effective: Array
    columns: list[str]
    worst: Level = "fail"

    def samples(self, most: int) -> tuple[Array, Array]:
        """Return at most this many independent draws of fit and truth."""
        worth = max(2, round(float(np.median(self.effective))))
        return _thinned_to(self.fit, most), _thinned_to(self.truth, min(most, worth))


def truth_findings(tree: xarray.DataTree, truth: xarray.DataTree) -> list[Finding]:
    """Compare a fit with the truth: means, sds, Wasserstein distances, kernel test.

    Raises
    ------
    DataError
        If the two trees hold the same quantity in different shapes.
    """
    findings = []
    for pair in comparable_pairs(tree, truth):
        findings += [_mean_finding(pair), _ratio_finding(pair), _wasserstein_finding(pair)]
        if pair.fit.shape[1] > 1:
            findings.append(_sliced_finding(pair))
            findings.append(_mmd_finding(pair))
    return findings


def comparable_pairs(tree: xarray.DataTree, truth: xarray.DataTree) -> list[Pair]:
    """Return the quantities both trees hold; columns that are constant in the truth are left out.

    These are the network's outputs at fixed inputs, the log joint, and the parameters named by the
    root attribute ``identified``.
    """
    names = [name for name in identified(tree) if variable(tree, "posterior", name) is not None]
    found = [
        _pair(tree, truth, "functions", "the network's outputs", [("functions", "f")], "fail"),
        _pair(tree, truth, "log_joint", "the log joint", [("sample_stats", "lp")], "warn"),
        _pair(
            tree,
            truth,
            "parameters",
            "the parameters",
            [("posterior", name) for name in names],
            "fail",
        ),
    ]
    return [pair for pair in found if pair is not None]


def effective_draws(values: Array) -> Array:
    """Return how many independent draws every column of ``(chain, draw, column)`` is worth.

    At most as many as there are: a claim of more would be noise here.
    """
    chains_, count, columns = values.shape
    total = float(chains_ * count)
    if count < 4:
        return np.full(columns, total)
    worth = [float(array_stats.ess(values[..., k], 0, 1, method="bulk")) for k in range(columns)]
    return np.clip(np.nan_to_num(worth, nan=1.0), 1.0, total)


def distances(fit: Array, truth: Array) -> Array:
    """Return the 1-D Wasserstein distance of every column, in true standard deviations."""
    levels = (np.arange(max(len(fit), len(truth))) + 0.5) / max(len(fit), len(truth))
    ours, theirs = (np.sort(side.T)[:, (levels * len(side)).astype(int)] for side in (fit, truth))
    return np.asarray(np.abs(ours - theirs).mean(1) / truth.std(0), np.float64)


def sliced_distance(fit: Array, truth: Array) -> float:
    """Return the mean over random directions of the distance of the projections.

    Every projection is measured in its own true standard deviations, after the columns were brought
    to the same scale.
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
    # The first row is the true labelling; rounding must not count a tie as smaller.
    p_value = float((values >= values[0] - 1e-12).mean())
    return float(values[0]), p_value


def _pair(
    tree: xarray.DataTree,
    truth: xarray.DataTree,
    name: str,
    words: str,
    places: list[tuple[str, str]],
    worst: Level,
) -> Pair | None:
    fits, truths, columns = [], [], []
    for group, key in places:
        ours, theirs = variable(tree, group, key), variable(truth, group, key)
        if ours is None or theirs is None:
            continue
        if draws(ours).shape[1] != draws(theirs).shape[1]:
            raise DataError(
                f"{group}/{key} has {draws(ours).shape[1]} numbers per draw in the fit and "
                f"{draws(theirs).shape[1]} in the truth; they must be the same quantities"
            )
        fits.append(draws(ours))
        truths.append(chains(theirs))
        columns += labels(ours)
    if not fits:
        return None
    fit, chained = np.concatenate(fits, -1), np.concatenate(truths, -1)
    flat = chained.reshape(-1, chained.shape[-1])
    finite = np.isfinite(fit).all(0) & np.isfinite(flat).all(0)
    keep = finite & ~is_constant(np.where(np.isfinite(flat), flat, 0.0))
    if not keep.any() or min(len(fit), len(flat)) < MIN_DRAWS:
        return None
    exact = truth.attrs.get("kind") == "exact"
    worth = np.full(keep.sum(), len(flat)) if exact else effective_draws(chained[..., keep])
    names = [column for column, kept_column in zip(columns, keep, strict=True) if kept_column]
    return Pair(name, words, fit[:, keep], flat[:, keep], worth, names, worst)


def _noise_quantile(pair: Pair) -> Array:
    """Return, in standard errors, what noise does not exceed in any of the columns."""
    freedom = np.minimum(pair.effective, len(pair.fit)) - 1
    tail = NOISE_PROBABILITY / (2 * len(pair.columns))
    return np.asarray(stats.t.isf(tail, np.maximum(freedom, 1)), np.float64)


def _capped(level: Level, pair: Pair) -> Level:
    return "warn" if level == "fail" and pair.worst == "warn" else level


def _advice(level: Level) -> str:
    if level == "ok":
        return ""
    return "Train longer; if that changes nothing, use a richer guide or sample with NUTS."


def _mean_finding(pair: Pair) -> Finding:
    scale = pair.truth.std(0, ddof=1)
    shift = np.abs(pair.fit.mean(0) - pair.truth.mean(0)) / scale
    spread = pair.fit.std(0, ddof=1) / scale
    error = np.sqrt(1 / pair.effective + spread**2 / len(pair.fit))
    beyond = shift - _noise_quantile(pair) * error
    k = int(beyond.argmax())
    level = _capped(_shift_level(float(beyond[k])), pair)
    message = (
        f"Means of {pair.words}: the largest difference is {format_number(float(shift[k]))} ± "
        f"{format_number(float(error[k]))} true sds, at {pair.columns[k]}; the median difference "
        f"is {format_number(float(np.median(shift)))}."
    )
    return Finding(
        f"truth.{pair.name}.mean",
        level,
        float(shift[k]),
        SHIFT_WARN,
        message,
        _advice(level),
        SOURCE,
    )


def _shift_level(beyond: float) -> Level:
    if beyond > SHIFT_FAIL:
        return "fail"
    return "warn" if beyond > SHIFT_WARN else "ok"


def _ratio_finding(pair: Pair) -> Finding:
    with np.errstate(divide="ignore"):
        log_ratio = np.log(pair.fit.std(0, ddof=1)) - np.log(pair.truth.std(0, ddof=1))
    # Relative variance of a sample variance is (kurtosis - 1) / n; half of its root for the sd.
    error = 0.5 * np.sqrt(
        _variance_noise(pair.fit) / len(pair.fit) + _variance_noise(pair.truth) / pair.effective
    )
    beyond = np.abs(log_ratio) - _noise_quantile(pair) * error
    k = int(beyond.argmax())
    level: Level = "ok"
    if beyond[k] > -np.log(RATIO_WARN):
        level = "fail" if beyond[k] > -np.log(RATIO_FAIL) else "warn"
    level = _capped(level, pair)
    ratio = float(np.exp(log_ratio[k]))
    typical = float(np.exp(np.median(log_ratio)))
    coverage = float(2 * stats.norm.cdf(1.96 * ratio) - 1)
    effect = (
        f", so that a 95 % interval there covers about {format_share(coverage)}"
        if level != "ok"
        else ""
    )
    message = (
        f"Sds of {pair.words} are {format_number(ratio)} times the true ones at "
        f"{pair.columns[k]}, where they differ most{effect}; the median ratio is "
        f"{format_number(typical)}."
    )
    advice = "" if level == "ok" else _ratio_advice(ratio)
    threshold = RATIO_WARN if ratio < 1 else 1 / RATIO_WARN
    return Finding(f"truth.{pair.name}.sd", level, ratio, threshold, message, advice, SOURCE)


def _variance_noise(values: Array) -> Array:
    """Return kurtosis - 1; short samples show too little of it, so not less than a Gaussian's."""
    centred = values - values.mean(0)
    variance = (centred**2).mean(0)
    kurtosis = np.divide(
        (centred**4).mean(0), variance**2, out=np.full(len(variance), 3.0), where=variance > 0
    )
    return np.asarray(np.maximum(kurtosis - 1, 2.0), np.float64)


def _ratio_advice(ratio: float) -> str:
    if ratio < 1:
        return (
            "The guide is too sure of itself, as factorised guides are when unknowns are "
            "correlated: use a full-rank or low-rank guide."
        )
    return "The guide is wider than the posterior: train longer, or start from smaller scales."


def _wasserstein_finding(pair: Pair) -> Finding:
    fit, truth = pair.samples(MAX_DRAWS)
    values = distances(fit, truth)
    k = int(values.argmax())
    noise = 0.0
    if values[k] > SHIFT_WARN:
        noise = _noise(truth, len(fit), lambda a, b: float(distances(a, b).max()))
    level = _capped(_shift_level(float(values[k]) - noise), pair)
    message = (
        f"Wasserstein distances of {pair.words}: the largest is {format_number(float(values[k]))} "
        f"true sds, at {pair.columns[k]}; the median is {format_number(float(np.median(values)))}."
    )
    return Finding(
        f"truth.{pair.name}.wasserstein",
        level,
        float(values[k]),
        SHIFT_WARN,
        message,
        _advice(level),
        SOURCE,
    )


def _sliced_finding(pair: Pair) -> Finding:
    fit, truth = pair.samples(MAX_DRAWS)
    value = sliced_distance(fit, truth)
    noise = _noise(truth, len(fit), sliced_distance) if value > SHIFT_WARN else 0.0
    level = _capped(_shift_level(value - noise), pair)
    message = (
        f"Sliced Wasserstein distance of {pair.words}, jointly: {format_number(value)} true sds of "
        "a random projection."
    )
    return Finding(
        f"truth.{pair.name}.sliced_wasserstein",
        level,
        value,
        SHIFT_WARN,
        message,
        _advice(level),
        SLICED_SOURCE,
    )


def _mmd_finding(pair: Pair) -> Finding:
    fit, truth = pair.samples(MMD_DRAWS)
    value, p_value = kernel_test(fit, truth)
    differ = p_value < MMD_P_VALUE
    if differ:
        ending = "are enough to tell them apart"
    else:
        ending = "do not tell them apart"
    message = (
        f"Kernel two-sample test of {pair.words}, jointly: {len(fit)} draws of the fit and "
        f"{len(truth)} of the truth {ending} (squared MMD {format_number(value)}, "
        f"p = {format_number(p_value)})."
    )
    return Finding(
        f"truth.{pair.name}.mmd",
        "warn" if differ else "ok",
        p_value,
        MMD_P_VALUE,
        message,
        "See which of means and sds differ, and whether by an amount that matters."
        if differ
        else "",
        MMD_SOURCE,
    )


def _thinned_to(values: Array, count: int) -> Array:
    """Return at most this many draws, evenly spaced."""
    if len(values) <= count:
        return values
    evenly: NDArray[np.int_] = np.linspace(0, len(values) - 1, count).round().astype(int)
    return values[evenly]


def _noise(truth: Array, num_fit: int, statistic: Callable[[Array, Array], float]) -> float:
    """Return the 99 % quantile of a distance between two samples drawn from the truth alone."""
    rng = np.random.default_rng(SEED)
    return float(
        np.quantile(
            [
                statistic(
                    truth[rng.integers(len(truth), size=num_fit)],
                    truth[rng.integers(len(truth), size=len(truth))],
                )
                for _ in range(RESAMPLINGS)
            ],
            0.99,
        )
    )
