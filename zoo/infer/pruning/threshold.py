"""Split group scores into signal and noise."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def otsu_threshold(scores: Array) -> float:
    """Return the threshold that splits scores into the two most compact clusters.

    Among all splits of the sorted scores it minimises the variance within the two sides (Otsu,
    1979); the threshold lies in the middle of the gap. Unlike the largest gap, this is robust to a
    single outlier.
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    if len(ordered) < 2 or ordered[0] == ordered[-1]:
        return float("inf")
    count = np.arange(1, len(ordered))
    total, cumulative = ordered.sum(), ordered.cumsum()[:-1]
    low, high = cumulative / count, (total - cumulative) / (len(ordered) - count)
    between = count * (len(ordered) - count) * (high - low) ** 2
    best = int(between.argmax())
    return float((ordered[best] + ordered[best + 1]) / 2)
