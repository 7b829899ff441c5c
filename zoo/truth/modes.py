"""Modes that chains never left: which chains are in which mode, where it is, and its weight.

Two chains are apart if the central 98 % of a reported quantity do not overlap. They are in
different modes if, in addition, the log density drops by more than `BARRIER` nats on lines between
them. A concave log density never drops, so chains that are apart only because they are slow are not
taken for modes. Quantities that do not tell modes apart, such as the outputs of a network with
permuted units, make none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csgraph

from zoo.diagnostics.reading import labels
from zoo.fit.schema import sampling_tree
from zoo.infer.nuts.regions import Regions
from zoo.infer.nuts.starts import BARRIER

Array = NDArray[np.float64]

#: Central part of a chain's draws that counts as its range.
RANGE = (0.01, 0.99)
#: Largest share of the mass in modes that are left out.
MAX_LEFT_OUT = 1e-3
#: Standard errors of a log mass by which it may be wrong.
MARGIN = 3.0
#: Fewest chains in a mode that has all the mass.
MIN_CHAINS = 4


@dataclass(frozen=True)
class Mode:
    """A mode: its chains, where it is, its share of the mass and the error of its log mass."""

    chains: tuple[int, ...]
    place: str
    weight: float
    error: float


def columns(reported: Mapping[str, NDArray[Any]]) -> tuple[list[str], Array]:
    """Return names and draws ``(chain, draw, column)`` of all elements of quantities."""
    arrays = sampling_tree(reported, {}, {})["posterior"].to_dataset().data_vars.values()
    names = [label for array in arrays for label in labels(array[0, 0])]
    values = [np.asarray(array, float).reshape(*array.shape[:2], -1) for array in arrays]
    return names, np.concatenate(values, -1)


def are_apart(values: Array) -> NDArray[np.bool_]:
    """Return which pairs of chains are apart, from draws ``(chain, draw, column)``."""
    low, high = np.quantile(values, RANGE, axis=1)
    above: NDArray[np.bool_] = (low[:, None] > high[None]).any(-1)
    return above | above.T


def find_modes(names: list[str], values: Array, regions: Regions) -> list[Mode]:
    """Return the modes of chains, the heaviest first; one if all chains are in the same.

    `names` and `values` are those of `columns`. The mass of a mode is the mean of what its chains
    say. Weights are NaN if a mass is.
    """
    different = are_apart(values) & (regions.barriers > BARRIER)
    number, groups = csgraph.connected_components(~different, directed=False)
    members = [np.flatnonzero(groups == group) for group in range(number)]
    logs = np.array([_log_mean(regions.log_mass[chains]) for chains in members])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    telling = _most_telling(values, members)
    modes = []
    for chains, weight in zip(members, weights, strict=True):
        draws = values[chains, :, telling]
        place = f"{names[telling]} around {draws.mean():.3g} (sd {draws.std():.2g})"
        error = float(np.hypot(np.mean(regions.error[chains]), np.std(regions.log_mass[chains])))
        modes.append(Mode(tuple(int(c) for c in chains), place, float(weight), error))
    return sorted(modes, key=lambda mode: -mode.weight)


def _log_mean(logs: Array) -> float:
    return float(np.logaddexp.reduce(logs) - np.log(len(logs)))


def _most_telling(values: Array, members: list[NDArray[np.intp]]) -> int:
    """Return the column in which the modes differ most, in sds within them."""
    means = np.stack([values[chains].mean((0, 1)) for chains in members])
    within = np.stack([values[chains].var((0, 1)) for chains in members]).mean(0)
    with np.errstate(all="ignore"):
        return int(np.nan_to_num(means.var(0) / within, nan=-1.0).argmax())


def kept_chains(modes: list[Mode]) -> tuple[int, ...] | None:
    """Return the chains of the only mode with mass, or None if others have a share of it."""
    first, *others = modes
    upper = sum(mode.weight * np.exp(MARGIN * (mode.error + first.error)) for mode in others)
    is_alone = upper <= MAX_LEFT_OUT and len(first.chains) >= MIN_CHAINS
    return first.chains if is_alone else None


def describe(modes: list[Mode], num_chains: int) -> str:
    """Say where the modes are, how many chains are in each, and what they weigh."""
    parts = []
    for mode in modes:
        share = "unknown weight" if np.isnan(mode.weight) else f"weight {mode.weight:.2g}"
        if np.isfinite(mode.error):
            share += f" (within a factor of {np.exp(2 * mode.error):.3g})"
        parts.append(f"{mode.place} in {len(mode.chains)} of {num_chains} chains, {share}")
    return f"{len(modes)} modes between which no chain moved: {'; '.join(parts)}"
