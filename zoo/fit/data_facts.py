"""Facts about the data of a fit, from which `zoo.diagnostics.data` judges them.

Sizes and scales, copies of rows, the difference between training and test inputs, and rows that own
the variance of a column. The work is bounded: tests on large data use a subsample of rows.
"""

from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy import stats

from zoo.data import Dataset
from zoo.fit.references import SEED, Inputs, subsample

Array = NDArray[Any]

#: Rows of each part for tests, and columns for pairs of rows that differ in one column.
MAX_ROWS = 2000
MAX_COLUMNS = 64
#: Rows that can own the variance of a column, and distinct values of a column that is judged.
TOP_ROWS = 3
MIN_DISTINCT = 10


def data_facts(dataset: Dataset) -> xarray.Dataset:
    """Return the facts as a group of the tree; those of one row per column have ``feature``."""
    x = dataset.X_train.reshape(len(dataset.X_train), -1)
    y = dataset.y_train.astype(np.float64)
    facts: dict[str, Any] = {
        "rows": len(x),
        "test_rows": len(dataset.X_test),
        "input_mean": ("feature", x.mean(0, dtype=np.float64)),
        "input_sd": ("feature", x.std(0, dtype=np.float64)),
        "input_top_share": ("feature", _top_shares(x)),
        "target_mean": y.mean(),
        "target_sd": y.std(),
        "target_top_share": 0.0,
    }
    if dataset.task == "regression":
        facts["target_top_share"] = _top_shares(y[:, None])[0]
    facts |= _copies(dataset)
    if len(dataset.X_test):
        facts |= _shift(dataset)
    coordinates = {"feature": dataset.schema.feature_names}
    return xarray.Dataset(facts, coords=coordinates)


def _top_shares(x: Array) -> Array:
    """Return the share of every column's variance that its few largest deviations have.

    Columns with few distinct values have 0: a rare category is no outlier.
    """
    shares = [_top_share(x[:, k].astype(np.float64)) for k in range(x.shape[1])]
    return np.array(shares)


def _top_share(values: Array) -> float:
    squares = (values - values.mean()) ** 2
    few = values[subsample(len(values), MAX_ROWS)]
    if len(np.unique(few)) <= MIN_DISTINCT or not squares.any():
        return 0.0
    largest = np.partition(squares, len(squares) - TOP_ROWS)[-TOP_ROWS:]
    return float(largest.sum() / squares.sum())


# ---------------------------------------------------------------------- copies of rows


def _copies(dataset: Dataset) -> dict[str, Any]:
    """Count rows, with their targets, that are equal.

    Tables of few discrete values have equal rows by chance. Such rows differ in a single column
    about as often as in none, and are as frequent as the frequencies of the values suggest. So the
    numbers of pairs that are equal, differ in one column, and are expected are counted too.
    """
    blocks = [len(column.feature_names) for column in dataset.schema.columns] + [1]
    ends = np.cumsum(blocks)
    hashes = np.zeros(len(dataset.X_train) + len(dataset.X_test), np.uint64)
    for start, end in zip(ends - blocks, ends, strict=True):
        hashes += _block_hash(dataset, int(start), int(end))
    train, test = np.split(hashes, [len(dataset.X_train)])
    equal = _pairs(hashes)
    facts: dict[str, Any] = {
        "copies": 1 - len(np.unique(train)) / len(train),
        "test_copies": float(np.isin(test, train).mean()) if len(test) else 0.0,
        "equal_pairs": equal,
        "near_pairs": 0.0,
        "chance_pairs": 0.0,
    }
    if not equal:
        return facts
    chosen = subsample(len(blocks), MAX_COLUMNS)
    few = subsample(len(hashes), MAX_ROWS)
    near, log_chance = 0.0, 0.0
    for k in chosen:
        own = _block_hash(dataset, int(ends[k] - blocks[k]), int(ends[k]))
        near += _pairs(hashes - own) - equal
        log_chance += np.log(max(_pairs(own[few]), 0.5) / _all_pairs(len(few)))
    share = len(blocks) / len(chosen)
    chance = _all_pairs(len(hashes)) * np.exp(share * log_chance)
    return facts | {"near_pairs": share * near, "chance_pairs": chance}


def _block_hash(dataset: Dataset, start: int, end: int) -> NDArray[np.uint64]:
    """Hash some columns of all rows to 64 bits; the target is the last column.

    Hashes of disjoint columns can be added.
    """
    parts = [(dataset.X_train, dataset.y_train), (dataset.X_test, dataset.y_test)]
    total = np.zeros(sum(len(y) for _, y in parts), np.uint64)
    width = dataset.num_features
    for column in range(start, end):
        last = column == width
        values = [y if last else x.reshape(len(x), width)[:, column] for x, y in parts]
        # Adding zero makes -0.0 and 0.0 the same bits.
        bits = (np.concatenate(values).astype(np.float64) + 0.0).view(np.uint64)
        bits = bits + np.uint64((column + 1) * 0x9E3779B97F4A7C15 % 2**64)
        # The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += bits ^ (bits >> np.uint64(31))
    return total


def _pairs(hashes: NDArray[np.uint64]) -> float:
    """Count the pairs of equal hashes."""
    counts = np.unique(hashes, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1) / 2).sum())


def _all_pairs(count: int) -> float:
    return max(count * (count - 1) / 2, 1.0)


# ---------------------------------------------------------------------- shift


def _shift(dataset: Dataset) -> dict[str, Any]:
    """Compare training with test inputs: every column, and the distance from the centre.

    ``shift`` is the Kolmogorov-Smirnov distance of each column of the inputs, ``outside`` the share
    of test rows beyond all training rows. The last entry is the Mahalanobis distance. It is
    estimated from half of the training rows, and the other half is compared with the test rows,
    as estimates from the same rows would be too close to them. The same holds for principal
    components, which replace many columns.
    """
    train = dataset.X_train[subsample(len(dataset.X_train), MAX_ROWS)]
    test = dataset.X_test[subsample(len(dataset.X_test), MAX_ROWS)]
    order = np.random.default_rng(SEED).permutation(len(train))
    half, other = train[order[::2]], train[order[1::2]]
    inputs = Inputs(train)
    if inputs.components is None:
        names = np.array(dataset.schema.feature_names)[inputs.kept].tolist()
        known = train
    else:
        inputs, known = Inputs(half), other
        names = [f"component {k + 1}" for k in range(inputs.linear(half).shape[1])]
    new = inputs.linear(test)
    columns = list(zip(inputs.linear(known).T, new.T, strict=True))
    if len(names) > 1 and len(half) >= 4:
        spread = _Spread(inputs.linear(half))
        columns.append((spread.distances(inputs.linear(other)), spread.distances(new)))
        names.append("distance from the centre")
    found = [float(stats.ks_2samp(a, b, method="asymp").statistic) for a, b in columns]
    outside = [float(((b < a.min()) | (b > a.max())).mean()) for a, b in columns]
    return {
        "shift": ("compared", found),
        "outside": ("compared", outside),
        "compared_rows": ("compared", [len(a) for a, _ in columns]),
        "compared_test_rows": len(test),
        "compared": ("compared", names),
    }


class _Spread:
    """Squared Mahalanobis distances; a ridge defines them with more columns than rows."""

    def __init__(self, x: Array) -> None:
        self.centre = x.mean(0)
        covariance = np.cov(x.T)
        covariance += np.eye(len(covariance)) * 0.01 * np.trace(covariance) / len(covariance)
        self.root = np.linalg.inv(np.linalg.cholesky(covariance))

    def distances(self, x: Array) -> Array:
        return np.asarray((((x - self.centre) @ self.root.T) ** 2).sum(1))
