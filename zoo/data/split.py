"""Split into training and test rows by a seed, the same on every machine."""

import math
from collections.abc import Sequence

import numpy as np

from zoo.data.columns import Array, listing
from zoo.errors import DataError


def split_rows(
    num_rows: int,
    *,
    test_fraction: float,
    seed: int,
    strata: Array | None = None,
    names: Sequence[str] = (),
) -> tuple[Array, Array]:
    """Return shuffled training and test row indices.

    With `strata`, the class index of each row, each class is split in the same proportion, with at
    least one row on either side; `names` are the class names for the error message.
    """
    if not 0 <= test_fraction < 1:
        raise DataError(f"test_fraction must be at least 0 and below 1; got {test_fraction}.")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise DataError(f"seed must be a whole number from 0; got {seed!r}.")
    # Sorting uniform keys depends only on the bit stream of PCG64. NumPy may change the algorithm
    # of Generator.permutation.
    keys = np.random.Generator(np.random.PCG64(seed)).random(num_rows)
    order = np.argsort(keys, kind="stable")
    if test_fraction == 0:
        return order, order[:0]
    groups = np.zeros(num_rows, dtype=np.int64) if strata is None else strata
    is_test = np.zeros(num_rows, dtype=bool)
    counts = np.bincount(groups)
    small = [names[i] if names else str(i) for i in np.flatnonzero(counts == 1).tolist()]
    if small:
        raise DataError(
            f"each class needs at least 2 rows, one to train and one to test; class(es) with a "
            f"single row: {listing(small)}. Remove or merge them, or pass task='regression' if "
            f"the target is a quantity."
        )
    for group, count in enumerate(counts):
        members = order[groups[order] == group]
        wanted = math.floor(test_fraction * count + 0.5)
        is_test[members[: min(max(wanted, 1), count - 1)]] = True
    return order[~is_test[order]], order[is_test[order]]
