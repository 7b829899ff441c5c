"""Does the model describe the data? Predictive checks, leave-one-out, calibration.

Checks on the training rows ask whether data drawn from the fitted model look like the data that were
observed; leave-one-out weights correct them for having seen those rows. Checks on held-out rows need
no correction, and are the ones to believe first.
"""

from collections.abc import Callable

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from zoo.diagnostics.approximation import MIN_DRAWS, pareto_khat, smoothed_log_weights, usable_khat
from zoo.diagnostics.finding import Finding, Level, format_number, format_share
from zoo.diagnostics.reading import SEED, Array, draws, scalar_draws, variable
from zoo.diagnostics.uniformity import (
    BAND_PROBABILITY,
    Uniformity,
    randomized_pit,
    uniformity,
)
from zoo.diagnostics.uniformity import SOURCE as BAND_SOURCE
from zoo.metrics import ECE_BINS, expected_calibration_error

PPC_SOURCE = "Gelman, Meng and Stern (1996); Gabry et al. (2019)"
PRIOR_SOURCE = "Box (1980); Gabry et al. (2019)"
LOO_SOURCE = "Magnusson et al. (2019); Vehtari, Gelman and Gabry (2017)"
ECE_SOURCE = "Guo et al. (2017); Bröcker and Smith (2007)"
COVERAGE_SOURCE = "Gneiting, Balabdaoui and Raftery (2007)"

#: A predictive p-value below this, over all statistics together, is a warning.
PPC_P_VALUE = 0.01
#: Observed statistics this many replicated sds away, beyond every replication, are a failure.
PPC_FAIL_SDS = 5.0
#: Rows on which leave-one-out is computed; more are thinned evenly.
MAX_LOO_ROWS = 1000
#: Share of rows with a k-hat too large.
MAX_BAD_K = 0.01
#: Distance of distribution functions above which values outside the band are a failure.
PIT_FAIL_DISTANCE = 0.2
#: Simulated data sets behind the calibration error of a perfectly calibrated forecast.
ECE_SIMULATIONS = 500
#: Calibration error, above what noise explains, that matters and that fails.
ECE_WARN, ECE_FAIL = 0.01, 0.10
COVERAGE_LEVELS = (0.5, 0.8, 0.95)
#: A coverage outside its binomial interval of this probability (all levels together) is a warning,
#: and one that is also lower by this much is a failure.
COVERAGE_P_VALUE = 0.01
COVERAGE_FAIL = 0.15

Statistics = dict[str, Callable[[Array], Array]]


def predictive_findings(tree: xarray.DataTree) -> list[Finding]:
    """Run all checks of this file that the groups of the tree allow."""
    return [
        *prior_predictive_findings(tree),
        *posterior_predictive_findings(tree),
        *loo_findings(tree),
        *held_out_findings(tree),
    ]


def task_of(tree: xarray.DataTree) -> str:
    """Return the root attribute ``task``; without it, what the data look like."""
    if "task" in tree.attrs:
        return str(tree.attrs["task"])
    if variable(tree, "held_out", "probability") is not None:
        return "classification"
    y = variable(tree, "observed_data", "y")
    return "classification" if y is not None and y.dtype.kind in "iub" else "regression"


# ------------------------------------------------------------------ replicated data


def posterior_predictive_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare statistics of the observed data with those of data drawn from the fitted model."""
    pair = _replications(tree, "posterior_predictive")
    if pair is None:
        return []
    replicated, y = pair
    name = "predictive.posterior_check"
    bad = float((~np.isfinite(replicated)).any(1).mean())
    if bad:
        return [
            Finding(
                name,
                "fail",
                bad,
                0,
                f"{format_share(bad)} of the posterior predictive draws are not finite.",
                "Look for outputs that overflow, or a scale without a lower bound.",
                PPC_SOURCE,
            )
        ]
    judged = _statistics(task_of(tree), y)
    worst = _worst_statistic(replicated, y, judged)
    level: Level = "ok"
    if worst.unusual:
        failing = worst.beyond_all and abs(worst.sds) > PPC_FAIL_SDS
        level = "fail" if failing else "warn"
    return [
        Finding(
            name,
            level,
            worst.p_value,
            PPC_P_VALUE,
            f"Of {len(judged)} statistics of the training data the {worst.name} fits worst: "
            f"{format_number(worst.observed)} observed, {format_number(worst.center)} ± "
            f"{format_number(worst.spread)} in data drawn from the fit "
            f"(p = {format_number(worst.p_value)}).",
            "" if level == "ok" else "Train longer first; then change likelihood or network.",
            PPC_SOURCE,
        )
    ]


def prior_predictive_findings(tree: xarray.DataTree) -> list[Finding]:
    """Ask whether the prior expects data like those observed. At most a warning: data win."""
    pair = _replications(tree, "prior_predictive")
    if pair is None:
        return []
    replicated, y = pair
    replicated = np.nan_to_num(replicated, nan=np.inf, posinf=np.finfo(float).max / 1e10)
    if task_of(tree) == "classification":
        judged = _class_frequencies(y)
    else:
        judged = {
            "median": lambda data: np.median(data, axis=-1),
            "interquartile range": lambda data: np.subtract(
                *np.quantile(data, [0.75, 0.25], axis=-1)
            ),
        }
    worst = _worst_statistic(replicated, y, judged)
    level: Level = "warn" if worst.beyond_all or worst.p_value * len(judged) < PPC_P_VALUE else "ok"
    return [
        Finding(
            "predictive.prior_check",
            level,
            worst.p_value,
            PPC_P_VALUE,
            f"The {worst.name} of the training data, {format_number(worst.observed)}, is the "
            f"statistic that the prior expects least (p = {format_number(worst.p_value)}).",
            "" if level == "ok" else "Widen the priors, or scale the data to what they expect.",
            PRIOR_SOURCE,
        )
    ]


class _Statistic:
    """Where an observed statistic falls among its replications."""

    def __init__(self, name: str, replicated: Array, observed: float, count: int) -> None:
        total = len(replicated)
        above, below = (replicated >= observed).sum(), (replicated <= observed).sum()
        self.name = name
        self.observed = observed
        self.center = float(np.mean(replicated))
        self.spread = float(np.std(replicated))
        self.p_value = float(min(1.0, 2 * (1 + min(above, below)) / (total + 1)))
        self.beyond_all = bool(min(above, below) == 0)
        gap = observed - self.center
        self.sds = gap / self.spread if self.spread > 0 else (np.inf if gap else 0.0)
        # With few draws the p-value cannot be small; then all of them must lie on one side.
        small = self.p_value <= max(PPC_P_VALUE / count, 2 / (total + 1))
        self.unusual = bool(small and abs(self.sds) > stats.norm.isf(PPC_P_VALUE / (2 * count)))


def _worst_statistic(replicated: Array, y: Array, judged: Statistics) -> _Statistic:
    found = [
        _Statistic(name, function(replicated), float(function(y[None])[0]), len(judged))
        for name, function in judged.items()
    ]
    return min(found, key=lambda statistic: (statistic.p_value, -abs(statistic.sds)))


def _replications(tree: xarray.DataTree, group: str) -> tuple[Array, Array] | None:
    """Return replicated and observed y of the rows where the latter is finite."""
    predictive, observed = variable(tree, group, "y"), variable(tree, "observed_data", "y")
    if predictive is None or observed is None:
        return None
    replicated, y = draws(predictive), observed.to_numpy().astype(np.float64).ravel()
    finite = np.isfinite(y)
    if replicated.shape[1] != len(y) or not finite.any() or len(replicated) < 2:
        return None
    return replicated[:, finite], y[finite]


def _statistics(task: str, y: Array) -> Statistics:
    if task == "classification":
        return _class_frequencies(y)
    common: Statistics = {
        "mean": lambda data: data.mean(-1),
        "standard deviation": lambda data: data.std(-1),
    }
    if task == "counts":
        return common | {"share of zeros": lambda data: (data == 0).mean(-1)}
    return common | {
        "5 % quantile": lambda data: np.quantile(data, 0.05, axis=-1),
        "95 % quantile": lambda data: np.quantile(data, 0.95, axis=-1),
    }


def _class_frequencies(y: Array) -> Statistics:
    def frequency(label: float) -> Callable[[Array], Array]:
        return lambda data: (data == label).mean(-1)

    return {f"frequency of class {label:g}": frequency(label) for label in np.unique(y)}


# ------------------------------------------------------------------ leave one out


def loo_findings(tree: xarray.DataTree) -> list[Finding]:
    r"""Estimate the score of unseen rows by leave-one-out, with the Pareto k of every row.

    Draws of the guide are weighted by :math:`p(y, \theta) / q(\theta)` as well (Magnusson et al.
    2019), unless k-hat says that these weights are useless; then the guide stands in for the
    posterior, and the message says so.
    """
    array = variable(tree, "log_likelihood", "y")
    if array is None:
        return []
    log_likelihood = draws(array)
    rows = _thinned_rows(log_likelihood.shape[1])
    finite = np.isfinite(log_likelihood[:, rows]).all(0)
    rows = rows[finite]
    if len(log_likelihood) < MIN_DRAWS or not len(rows):
        return []
    correction = _posterior_correction(tree, len(log_likelihood))
    elpd, khat, weights = leave_one_out(log_likelihood[:, rows], correction)
    findings = _loo_summary(elpd, khat, len(log_likelihood), correction is not None)
    if task_of(tree) != "classification":
        findings += _loo_pit(tree, rows, weights)
    return findings


def leave_one_out(
    log_likelihood: Array, correction: Array | None = None
) -> tuple[Array, Array, Array]:
    r"""Return elpd, Pareto k and smoothed weights of every row.

    Weights are :math:`\propto e^{c_s} / p(y_i \mid \theta_s)`, Pareto smoothed. These are the numbers
    of ArviZ's ``loo`` and ``loo_approximate_posterior``, which stop at a row whose likelihood is the
    same in all draws; a network that is sure of a class has many of those.

    Parameters
    ----------
    log_likelihood
        Shape ``(draws, rows)``.
    correction
        Log importance weights of the draws, c above.
    """
    ratios = -log_likelihood if correction is None else correction[:, None] - log_likelihood
    smoothed = [smoothed_log_weights(column) for column in ratios.T]
    weights = np.stack([column for column, _ in smoothed], axis=1)
    elpd = np.asarray(logsumexp(weights + log_likelihood, axis=0), np.float64)
    return elpd, np.array([khat for _, khat in smoothed]), np.exp(weights)


def _thinned_rows(count: int) -> NDArray[np.int_]:
    if count <= MAX_LOO_ROWS:
        return np.arange(count)
    return np.linspace(0, count - 1, MAX_LOO_ROWS).round().astype(int)


def _posterior_correction(tree: xarray.DataTree, count: int) -> Array | None:
    log_joint = scalar_draws(tree, "sample_stats", "lp")
    log_guide = scalar_draws(tree, "sample_stats", "log_q")
    if log_joint is None or log_guide is None or not len(log_joint) == len(log_guide) == count:
        return None
    with np.errstate(invalid="ignore"):
        weights = log_joint - log_guide
    if not np.isfinite(weights).all() or not pareto_khat(weights) <= usable_khat(count):
        return None
    return weights


def _loo_summary(elpd: Array, khat: Array, num_draws: int, corrected: bool) -> list[Finding]:
    threshold = usable_khat(num_draws)
    share = float((khat > threshold).mean())
    error = float(elpd.std() / np.sqrt(len(elpd)))
    how = "corrected for the guide" if corrected else "the guide taken for the posterior"
    score = Finding(
        "predictive.loo",
        "info",
        float(elpd.mean()),
        None,
        f"Leave-one-out log predictive density ({how}): {format_number(float(elpd.mean()))} ± "
        f"{format_number(error)} nats per row over {len(elpd)} rows.",
        "",
        LOO_SOURCE,
    )
    bad = share > MAX_BAD_K
    pareto = Finding(
        "predictive.loo_pareto_k",
        "warn" if bad else "ok",
        share,
        MAX_BAD_K,
        f"{format_share(share)} of the rows have a Pareto k above {format_number(threshold)}, the "
        f"largest is {format_number(float(khat.max()))}.",
        "Do not compare models by leave-one-out here; use held-out rows." if bad else "",
        LOO_SOURCE,
    )
    return [score, pareto]


def _loo_pit(tree: xarray.DataTree, rows: NDArray[np.int_], weights: Array) -> list[Finding]:
    predictive, observed = (
        variable(tree, "posterior_predictive", "y"),
        variable(tree, "observed_data", "y"),
    )
    if predictive is None or observed is None:
        return []
    replicated, y = draws(predictive), observed.to_numpy().astype(np.float64).ravel()
    if len(replicated) != len(weights) or len(y) <= rows.max() or replicated.shape[1] != len(y):
        return []
    usable = np.isfinite(y[rows]) & np.isfinite(replicated[:, rows]).all(0)
    if not usable.any():
        return []
    values = loo_pit(replicated[:, rows][:, usable], y[rows][usable], weights[:, usable])
    return [_pit_finding("predictive.loo_pit", "Leave-one-out PIT values", uniformity(values))]


def loo_pit(samples: Array, y: Array, weights: Array) -> Array:
    """Return the weighted share of draws below each observation; ties are broken at random."""
    noise = np.random.default_rng(SEED).uniform(size=len(y))
    below = (weights * (samples < y)).sum(0)
    ties = (weights * (samples == y)).sum(0)
    return np.asarray(np.clip(below + noise * ties, 0, 1), np.float64)


def _pit_finding(name: str, words: str, result: Uniformity) -> Finding:
    level: Level = "ok"
    if result.p_value < 1 - BAND_PROBABILITY:
        level = "fail" if result.distance > PIT_FAIL_DISTANCE else "warn"
    state = "are compatible with" if level == "ok" else "deviate from"
    return Finding(
        name,
        level,
        result.p_value,
        1 - BAND_PROBABILITY,
        f"{words} {state} uniformity (p = {format_number(result.p_value)}, largest distance of the "
        f"distribution functions {format_number(result.distance)}).",
        ""
        if level == "ok"
        else "Look at the PIT plot: a hump means predictions too wide, a "
        "trough too narrow, a slope biased.",
        BAND_SOURCE,
    )


# ------------------------------------------------------------------ held-out rows


def held_out_findings(tree: xarray.DataTree) -> list[Finding]:
    """Judge predictions of rows that were not fitted: calibration of classes, or of intervals."""
    observed = variable(tree, "held_out", "y")
    if observed is None:
        return []
    y = observed.to_numpy().astype(np.float64).ravel()
    findings = []
    probability = variable(tree, "held_out", "probability")
    if probability is not None and probability.ndim == 2:
        findings += _calibration(probability.to_numpy().astype(np.float64), y)
    samples = variable(tree, "held_out", "y_samples")
    if samples is not None and "draw" in samples.dims:
        findings += _intervals(draws(samples), y)
    return findings


def reliability_curve(probability: Array, y: Array, bins: int = ECE_BINS) -> xarray.Dataset:
    """Return accuracy against confidence, bin by bin, with 95 % intervals of the accuracy.

    Parameters
    ----------
    probability
        Shape ``(rows, classes)``.
    y
        Class of every row, as a number.

    Returns
    -------
    xarray.Dataset
        ``confidence``, ``accuracy``, ``lower``, ``upper`` (Wilson intervals) and ``count`` over the
        bins that hold rows.
    """
    confidence, correct = probability.max(-1), probability.argmax(-1) == y
    index = _confidence_bins(confidence, bins)
    count = np.bincount(index, minlength=bins)
    used = count > 0
    hits = np.bincount(index, correct, minlength=bins)[used]
    intervals = [
        stats.binomtest(int(k), int(n)).proportion_ci(0.95, method="wilson")
        for k, n in zip(hits, count[used], strict=True)
    ]
    mean = np.bincount(index, confidence, minlength=bins)[used] / count[used]
    return xarray.Dataset(
        {
            "confidence": ("bin", mean),
            "accuracy": ("bin", hits / count[used]),
            "lower": ("bin", [interval.low for interval in intervals]),
            "upper": ("bin", [interval.high for interval in intervals]),
            "count": ("bin", count[used]),
        }
    )


def calibration_noise(probability: Array, bins: int = ECE_BINS) -> Array:
    """Return calibration errors of data simulated from the forecasts themselves, which are perfect.

    Bröcker and Smith (2007) call this consistency resampling.
    """
    confidence = probability.max(-1)
    index = _confidence_bins(confidence, bins)
    rng = np.random.default_rng(SEED)
    errors = np.empty(ECE_SIMULATIONS)
    for k in range(ECE_SIMULATIONS):
        excess = (rng.uniform(size=len(confidence)) < confidence) - confidence
        errors[k] = np.abs(np.bincount(index, excess, minlength=bins)).sum() / len(confidence)
    return errors


def _confidence_bins(confidence: Array, bins: int) -> NDArray[np.int_]:
    """Number the bins as `zoo.metrics.expected_calibration_error` does."""
    return np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)


def _calibration(probability: Array, y: Array) -> list[Finding]:
    name = "predictive.calibration"
    if len(probability) != len(y):
        return []
    if not np.isfinite(probability).all():
        return [
            Finding(
                name,
                "fail",
                None,
                None,
                "Some predicted probabilities of held-out rows are not finite.",
                "Look for outputs that overflow.",
                ECE_SOURCE,
            )
        ]
    error = expected_calibration_error(probability, y)
    noise = calibration_noise(probability)
    limit, excess = float(np.quantile(noise, 0.99)), error - float(noise.mean())
    level: Level = "ok"
    if error > limit and excess > ECE_WARN:
        level = "fail" if excess > ECE_FAIL else "warn"
    confident = float(probability.max(-1).mean() - (probability.argmax(-1) == y).mean())
    direction = "over-confident" if confident > 0 else "under-confident"
    return [
        Finding(
            name,
            level,
            error,
            limit,
            f"The calibration error on {len(y)} held-out rows is {format_number(error)}; a perfectly "
            f"calibrated forecast would show {format_number(float(noise.mean()))} on average, and "
            f"up to {format_number(limit)} in 99 of 100 cases.",
            ""
            if level == "ok"
            else f"The forecasts are {direction}: average more draws, train "
            "longer, or change the prior scale.",
            ECE_SOURCE,
        )
    ]


def _intervals(samples: Array, y: Array) -> list[Finding]:
    if samples.shape[1] != len(y):
        return []
    usable = np.isfinite(y)
    if not usable.any():
        return []
    if not np.isfinite(samples[:, usable]).all():
        return [
            Finding(
                "predictive.held_out_pit",
                "fail",
                None,
                None,
                "Some predictive draws of held-out rows are not finite.",
                "Look for outputs that overflow, or a scale without a lower bound.",
                COVERAGE_SOURCE,
            )
        ]
    values = randomized_pit(samples[:, usable], y[usable])
    return [
        *[_coverage_finding(values, level) for level in COVERAGE_LEVELS],
        _pit_finding("predictive.held_out_pit", "PIT values of held-out rows", uniformity(values)),
    ]


def _coverage_finding(pit: Array, nominal: float) -> Finding:
    inside = int((np.abs(2 * pit - 1) <= nominal).sum())
    coverage = inside / len(pit)
    p_value = float(stats.binomtest(inside, len(pit), nominal).pvalue)
    level: Level = "ok"
    if p_value < COVERAGE_P_VALUE / len(COVERAGE_LEVELS):
        level = "fail" if nominal - coverage > COVERAGE_FAIL else "warn"
    advice = ""
    if level != "ok":
        advice = (
            "Intervals are too narrow: use a richer guide or a likelihood with heavier tails."
            if coverage < nominal
            else "Intervals are too wide: train longer, or learn the noise scale."
        )
    return Finding(
        f"predictive.coverage_{round(100 * nominal)}",
        level,
        coverage,
        nominal,
        f"Intervals of {format_share(nominal)} hold {format_share(coverage)} of {len(pit)} held-out "
        f"rows (p = {format_number(p_value)}).",
        advice,
        COVERAGE_SOURCE,
    )
