"""Read arrays from a tree. A missing group or variable gives None, never an error."""

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from zoo.errors import DataError

Array = NDArray[np.floating]

#: Seed of checks that simulate, so that a tree always gives the same findings.
SEED = 20240601

#: Variation below this fraction of the largest magnitude is rounding error.
RELATIVE_ROUNDING = 1e-10


def variable(tree: xarray.DataTree, group: str, name: str) -> xarray.DataArray | None:
    """Return a variable of a group, or None if either is missing or holds no numbers."""
    if group not in tree.children or name not in tree[group].data_vars:
        return None
    array: xarray.DataArray = tree[group].to_dataset()[name]
    return array if array.size and array.dtype.kind in "fiub" else None


def variables(tree: xarray.DataTree, group: str) -> list[str]:
    """Return the names of the variables of a group, or an empty list if it is missing."""
    return [str(name) for name in tree[group].data_vars] if group in tree.children else []


def chains(array: xarray.DataArray) -> Array:
    """Return draws as ``(chain, draw, everything else flattened)`` in float64.

    A chain dimension is added if there is none; a draw dimension is required. A variable with the
    attribute ``resolution`` is read as if it were measured with an error of this sd, so that
    smaller differences do not count in any check.
    """
    if "draw" not in array.dims:
        raise DataError(f"variable {array.name!r} has dimensions {array.dims}, 'draw' is missing")
    if "chain" not in array.dims:
        array = array.expand_dims("chain")
    values = array.transpose("chain", "draw", ...).to_numpy().astype(np.float64)
    values = values.reshape(*values.shape[:2], -1)
    resolution = float(array.attrs.get("resolution", 0.0))
    if resolution > 0:
        # Fit and truth need different errors; a tree always gives the same ones.
        rng = np.random.default_rng([SEED, zlib.crc32(values.tobytes())])
        values = values + resolution * rng.normal(size=values.shape)
    return values


def draws(array: xarray.DataArray) -> Array:
    """Return draws of all chains as ``(draw, everything else flattened)``."""
    values = chains(array)
    return values.reshape(-1, values.shape[-1])


def log_weights(tree: xarray.DataTree) -> Array | None:
    """Return the log importance weights ``lp - log_q`` of the draws, or None if one is missing."""
    found = [variable(tree, "sample_stats", name) for name in ("lp", "log_q")]
    joint, guide = (None if array is None else draws(array) for array in found)
    if joint is None or guide is None or joint.shape != guide.shape or joint.shape[1] != 1:
        return None
    with np.errstate(invalid="ignore"):
        return np.asarray(joint - guide)[:, 0]


def replications(tree: xarray.DataTree, group: str) -> tuple[Array, Array] | None:
    """Return predictive draws ``(draw, row)`` and observed y, or None if they do not match."""
    predictive, observed = variable(tree, group, "y"), variable(tree, "observed_data", "y")
    if predictive is None or observed is None:
        return None
    replicated, y = draws(predictive), observed.to_numpy().astype(np.float64).ravel()
    return (replicated, y) if replicated.shape[1] == len(y) else None


def shape_per_draw(array: xarray.DataArray) -> list[int]:
    """Return the sizes of all dimensions except chain and draw."""
    return [size for dim, size in array.sizes.items() if dim not in ("chain", "draw")]


def labels(array: xarray.DataArray) -> list[str]:
    """Name the columns of `draws`: ``f[3, 0]``, or the plain name of a scalar.

    Functions have named outputs: ``P(setosa) at row 17``.
    """
    shape = shape_per_draw(array)
    if not shape:
        return [str(array.name)]
    if array.dims[-2:] == ("point", "output") and {"point", "output"} <= set(array.coords):
        rows, names = array["point"].to_numpy(), array["output"].to_numpy()
        return [f"{name} at row {row}" for row in rows for name in names]
    return [f"{array.name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]


def row_count(tree: xarray.DataTree) -> int:
    """Return the number of training rows in the tree, or 0 if it is unknown."""
    for group in ("observed_data", "log_likelihood"):
        array = variable(tree, group, "y")
        if array is not None:
            return math.prod(shape_per_draw(array))
    return 0


def training_rows(tree: xarray.DataTree) -> int:
    """Return the number of rows used in the fit, including rows not stored in the tree."""
    return row_count(tree) + int(tree.attrs.get("rows_left_out", 0))


def identified(tree: xarray.DataTree) -> list[str]:
    """Return the names in the comma-separated root attribute ``identified``."""
    return _listed(tree, "identified")


def parameters(tree: xarray.DataTree) -> list[str]:
    """Return the variables of the posterior that can be interpreted on their own.

    They are listed in the comma-separated root attribute ``parameters``; without it all variables
    are returned. Sites that only enter as a product, such as the scales of a horseshoe, are not
    listed.
    """
    known = variables(tree, "posterior")
    if "parameters" not in tree.attrs:
        return known
    named = _listed(tree, "parameters")
    return [name for name in known if name in named]


def prior_and_posterior(tree: xarray.DataTree) -> Iterator[tuple[str, Array, Array]]:
    """Yield the name of every parameter that has draws from both, and these."""
    for name in parameters(tree):
        before, after = (variable(tree, group, name) for group in ("prior", "posterior"))
        if before is not None and after is not None:
            yield name, draws(before), draws(after)


def _listed(tree: xarray.DataTree, attribute: str) -> list[str]:
    names = str(tree.attrs.get(attribute, "")).split(",")
    return [name.strip() for name in names if name.strip()]


def varies(values: Array) -> NDArray[np.bool_]:
    """Return for every column whether all draws are finite and not equal up to rounding."""
    finite = np.isfinite(values).all(0)
    known = np.where(finite, values, 0.0)
    moving = np.ptp(known, axis=0) > RELATIVE_ROUNDING * np.abs(known).max(axis=0)
    return np.asarray(finite & moving)


def thinned(values: NDArray[Any], most: int) -> NDArray[Any]:
    """Return at most this many rows, evenly spaced."""
    if len(values) <= most:
        return values
    evenly: NDArray[np.int_] = np.linspace(0, len(values) - 1, most).round().astype(int)
    return np.asarray(values[evenly])


def task_of(tree: xarray.DataTree) -> str:
    """Return the root attribute ``task``, or infer the task from the data."""
    if "task" in tree.attrs:
        return str(tree.attrs["task"])
    if variable(tree, "held_out", "probability") is not None:
        return "classification"
    y = variable(tree, "observed_data", "y")
    return "classification" if y is not None and y.dtype.kind in "iub" else "regression"


def dimension_of(tree: xarray.DataTree) -> int:
    """Return the number of unknowns: root attribute ``dimension``, or the posterior's size."""
    if "dimension" in tree.attrs:
        return int(tree.attrs["dimension"])
    found = (variable(tree, "posterior", name) for name in variables(tree, "posterior"))
    return sum(math.prod(shape_per_draw(array)) for array in found if array is not None)
