"""Scores of predictions in NumPy; every docstring says whether lower or higher is better."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

#: Number of equally wide confidence bins of the calibration error.
ECE_BINS = 15


def accuracy(probabilities: Array, y: Array) -> float:
    """Fraction of rows whose most probable class is the true one. Higher is better."""
    return float((probabilities.argmax(-1) == y).mean())


def brier(probabilities: Array, y: Array) -> float:
    r"""Mean of :math:`\sum_c (p_c - 1[y = c])^2`, from 0 to 2. Lower is better."""
    one_hot = np.eye(probabilities.shape[-1])[y.astype(int)]
    return float(((probabilities - one_hot) ** 2).sum(-1).mean())


def expected_calibration_error(probabilities: Array, y: Array, bins: int = ECE_BINS) -> float:
    """Gap between confidence and accuracy, averaged over bins of confidence. Lower is better.

    Guo, Pleiss, Sun and Weinberger (2017), *On Calibration of Modern Neural Networks*.
    """
    confidence = probabilities.max(-1)
    correct = probabilities.argmax(-1) == y
    # Bins are (low, high]; a confidence of exactly 0 falls into the first.
    index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    weight = np.bincount(index, minlength=bins) / len(y)
    gap = np.zeros(bins)
    for b in np.unique(index):
        inside = index == b
        gap[b] = abs(correct[inside].mean() - confidence[inside].mean())
    return float((weight * gap).sum())


def rmse(mean: Array, y: Array) -> float:
    """Root mean squared error of the predictive mean. Lower is better."""
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def crps(samples: Array, y: Array) -> float:
    r"""Continuous ranked probability score in units of y, averaged over rows. Lower is better.

    .. math:: E|X - y| - \tfrac12 E|X - X'|

    with the unbiased estimator of the second term from sorted samples.

    The samples have the shape ``(draws, rows)``, with at least two draws.

    Gneiting and Raftery (2007), *Strictly Proper Scoring Rules, Prediction, and Estimation*.
    """
    count = len(samples)
    ordered = np.sort(samples, axis=0)
    # sum_{i<j} (x_j - x_i) = sum_k (2k - n + 1) x_k for sorted x, k from 0.
    weights = 2.0 * np.arange(count) - count + 1
    spread = (weights[:, None] * ordered).sum(0) / (count * (count - 1))
    return float((np.abs(samples - y).mean(0) - spread).mean())
