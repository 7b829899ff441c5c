"""Calibration of predictions for held-out rows, the most reliable of all checks."""

from functools import partial

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy import stats

from zoo.diagnostics.finding import Finding, Level, format_number, format_share, level_of
from zoo.diagnostics.reading import SEED, Array, draws, variable
from zoo.diagnostics.uniformity import pit_finding, randomized_pit, uniformity
from zoo.infer.predict.scores import ECE_BINS, expected_calibration_error

CALIBRATION = partial(
    Finding, "predictive.calibration", source="Guo et al. (2017); Bröcker and Smith (2007)"
)
COVERAGE_SOURCE = "Gneiting, Balabdaoui and Raftery (2007)"

#: Simulated data sets for the calibration error of a perfectly calibrated forecast.
ECE_SIMULATIONS = 500
#: Calibration error in excess of noise: warning and failure.
ECE_WARN, ECE_FAIL = 0.01, 0.10
COVERAGE_LEVELS = (0.5, 0.8, 0.95)
#: A binomial p-value of the coverage below this (all levels together) is a warning. If the
#: coverage is also too low by `COVERAGE_FAIL`, it is a failure.
COVERAGE_P_VALUE = 0.01
COVERAGE_FAIL = 0.15


def held_out_findings(tree: xarray.DataTree) -> list[Finding]:
    """Check predictions for held-out rows: calibration of classes, or of intervals."""
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
    """Return accuracy over confidence, bin by bin, with 95 % intervals of the accuracy.

    Parameters
    ----------
    probability
        Shape ``(rows, classes)``.
    y
        Class of every row, as a number.

    Returns
    -------
    xarray.Dataset
        ``confidence``, ``accuracy``, ``lower``, ``upper`` (Wilson intervals) and ``count`` of the
        non-empty bins.
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
    """Return calibration errors of perfect forecasts, with data simulated from the forecasts.

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
    """Assign rows to bins as in `zoo.infer.predict.scores.expected_calibration_error`."""
    index: NDArray[np.int_] = np.ceil(confidence * bins).astype(int) - 1
    return index.clip(0, bins - 1)


def _calibration(probability: Array, y: Array) -> list[Finding]:
    if len(probability) != len(y):
        return []
    if not np.isfinite(probability).all():
        message = "Some predicted probabilities of held-out rows are not finite."
        advice = "Look for network outputs that overflow."
        return [CALIBRATION("fail", None, None, message, advice)]
    error = expected_calibration_error(probability, y)
    noise = calibration_noise(probability)
    typical, limit = float(noise.mean()), float(np.quantile(noise, 0.99))
    level = level_of(error - typical if error > limit else 0.0, ECE_WARN, ECE_FAIL)
    confident = float(probability.max(-1).mean() - (probability.argmax(-1) == y).mean())
    message = (
        f"The calibration error on {len(y)} held-out rows is {format_number(error)}. For a "
        f"perfectly calibrated forecast it is {format_number(typical)} on average and at most "
        f"{format_number(limit)} in 99 of 100 cases."
    )
    advice = (
        "Average over more draws, train longer, or change the prior scale: the forecasts are "
        f"{'overconfident' if confident > 0 else 'underconfident'}."
    )
    return [CALIBRATION(level, error, limit, message, advice)]


def _intervals(samples: Array, y: Array) -> list[Finding]:
    usable = np.isfinite(y)
    if samples.shape[1] != len(y) or not usable.any():
        return []
    name = "predictive.held_out_pit"
    if not np.isfinite(samples[:, usable]).all():
        message = "Some predictive draws of held-out rows are not finite."
        advice = "Look for network outputs that overflow, or for a scale without a lower bound."
        return [Finding(name, "fail", None, None, message, advice, COVERAGE_SOURCE)]
    values = randomized_pit(samples[:, usable], y[usable])
    return [
        *[_coverage_finding(values, nominal) for nominal in COVERAGE_LEVELS],
        pit_finding(name, "PIT values of held-out rows", uniformity(values)),
    ]


def _coverage_finding(pit: Array, nominal: float) -> Finding:
    name = f"predictive.coverage_{round(100 * nominal)}"
    inside = int((np.abs(2 * pit - 1) <= nominal).sum())
    coverage = inside / len(pit)
    p_value = float(stats.binomtest(inside, len(pit), nominal).pvalue)
    level: Level = "ok"
    if p_value < COVERAGE_P_VALUE / len(COVERAGE_LEVELS):
        level = "fail" if nominal - coverage > COVERAGE_FAIL else "warn"
    message = (
        f"Intervals of {format_share(nominal)} cover {format_share(coverage)} of {len(pit)} "
        f"held-out rows (p = {format_number(p_value)})."
    )
    advice = "Look at the noise: it is too wide for most rows if it is fixed, or if a few own it."
    if coverage < nominal:
        advice = "Look at the noise, then at the guide: intervals are too narrow."
    return Finding(name, level, coverage, nominal, message, advice, COVERAGE_SOURCE)
