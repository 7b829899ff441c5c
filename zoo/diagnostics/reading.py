"""Read arrays from a tree. A missing group or variable gives None, never an error."""

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

    A chain dimension is added if there is none.

    Raises
    ------
    DataError
        If there is no dimension ``draw``.
    """
    if "draw" not in array.dims:
        raise DataError(f"variable {array.name!r} has dimensions {array.dims}, 'draw' is missing")
    if "chain" not in array.dims:
        array = array.expand_dims("chain")
    values = array.transpose("chain", "draw", ...).to_numpy().astype(np.float64)
    return values.reshape(*values.shape[:2], -1)


def draws(array: xarray.DataArray) -> Array:
    """Return draws of all chains as ``(draw, everything else flattened)``."""
    values = chains(array)
    return values.reshape(-1, values.shape[-1])


def scalar_draws(tree: xarray.DataTree, group: str, name: str) -> Array | None:
    """Return one number per draw, or None if the variable is missing or not scalar."""
    array = variable(tree, group, name)
    if array is None:
        return None
    values = draws(array)
    return values[:, 0] if values.shape[1] == 1 else None


def labels(array: xarray.DataArray) -> list[str]:
    """Name the columns of `draws`: ``f[3, 0]``, or the plain name of a scalar."""
    shape = [size for dim, size in array.sizes.items() if dim not in ("chain", "draw")]
    if not shape:
        return [str(array.name)]
    return [f"{array.name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]


def row_count(tree: xarray.DataTree) -> int:
    """Return the number of training rows in the tree, or 0 if it is unknown."""
    for group in ("observed_data", "log_likelihood"):
        array = variable(tree, group, "y")
        if array is not None:
            return int(
                np.prod([size for dim, size in array.sizes.items() if dim not in ("chain", "draw")])
            )
    return 0


def training_rows(tree: xarray.DataTree) -> int:
    """Return the number of rows used in the fit, including rows not stored in the tree."""
    return row_count(tree) + int(tree.attrs.get("rows_left_out", 0))


def identified(tree: xarray.DataTree) -> list[str]:
    """Return the names in the comma-separated root attribute ``identified``."""
    text = str(tree.attrs.get("identified", ""))
    return [name.strip() for name in text.split(",") if name.strip()]


def parameters(tree: xarray.DataTree) -> list[str]:
    """Return the variables of the posterior that can be interpreted on their own.

    They are listed in the comma-separated root attribute ``parameters``; without it all variables
    are returned. Sites that only enter as a product, such as the scales of a horseshoe, are not
    listed.
    """
    known = variables(tree, "posterior")
    if "parameters" not in tree.attrs:
        return known
    named = {name.strip() for name in str(tree.attrs["parameters"]).split(",")}
    return [name for name in known if name in named]


def is_constant(values: Array) -> NDArray[np.bool_]:
    """Return for every column whether its draws are equal up to rounding."""
    size = np.abs(values).max(axis=0)
    spread: NDArray[np.bool_] = np.ptp(values, axis=0) <= RELATIVE_ROUNDING * size
    return spread


def task_of(tree: xarray.DataTree) -> str:
    """Return the root attribute ``task``, or infer the task from the data."""
    if "task" in tree.attrs:
        return str(tree.attrs["task"])
    if variable(tree, "held_out", "probability") is not None:
        return "classification"
    y = variable(tree, "observed_data", "y")
    return "classification" if y is not None and y.dtype.kind in "iub" else "regression"
