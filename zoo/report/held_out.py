"""Predictions for held-out rows, in the form used by the figures."""

from dataclasses import dataclass

import numpy as np
import xarray
from numpy.typing import NDArray

from zoo.diagnostics.reading import Array, draws, variable


@dataclass(frozen=True)
class Classes:
    """Predicted probabilities ``(row, class)``, true classes of the rows, names of classes."""

    probability: Array
    y: NDArray[np.int_]
    names: list[str]


def held_out_classes(tree: xarray.DataTree) -> Classes | None:
    """Return held-out class probabilities, or None if they are missing or invalid."""
    probability, y = variable(tree, "held_out", "probability"), variable(tree, "held_out", "y")
    if probability is None or y is None or probability.ndim != 2:
        return None
    values, right = probability.to_numpy().astype(np.float64), y.to_numpy().ravel()
    if len(values) != len(right) or not (np.isfinite(values).all() and np.isfinite(right).all()):
        return None
    if right.min() < 0 or right.max() >= values.shape[1]:
        return None
    names = [str(name) for name in probability.get_index(probability.dims[1])]
    return Classes(values, right.astype(int), names)


def held_out_draws(tree: xarray.DataTree) -> tuple[Array, Array] | None:
    """Return predictive draws ``(draw, row)`` and observations of the finite rows."""
    return _usable(variable(tree, "held_out", "y_samples"), variable(tree, "held_out", "y"))


def training_draws(tree: xarray.DataTree) -> tuple[Array, Array] | None:
    """Return posterior predictive draws ``(draw, row)`` of the training rows, and their y."""
    return _usable(
        variable(tree, "posterior_predictive", "y"), variable(tree, "observed_data", "y")
    )


def _usable(
    samples: xarray.DataArray | None, observed: xarray.DataArray | None
) -> tuple[Array, Array] | None:
    if samples is None or observed is None or "draw" not in samples.dims:
        return None
    values, y = draws(samples), observed.to_numpy().astype(np.float64).ravel()
    if values.shape[1] != len(y) or len(values) < 2:
        return None
    finite = np.isfinite(y) & np.isfinite(values).all(0)
    return (values[:, finite], y[finite]) if finite.any() else None
