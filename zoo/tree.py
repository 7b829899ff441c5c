"""Draws to `xarray.DataTree` in ArviZ's schema. The only file that knows that schema.

Tensors end here: diagnostics and reports see the tree and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.errors import StoreError

#: Weights are left out of the posterior group when their draws would take more than this; they can
#: be drawn again from the stored guide.
MAX_WEIGHT_BYTES = 100 * 2**20

Arrays = Mapping[str, Tensor]


def posterior_tree(
    *,
    sites: Arrays,
    slots: Arrays,
    sample_stats: Arrays,
    log_likelihood: Tensor,
    posterior_predictive: NDArray[Any],
    observed: NDArray[Any],
    losses: Tensor,
    attributes: Mapping[str, Any],
) -> xarray.DataTree:
    """Build the tree of one fit.

    Parameters
    ----------
    sites, slots
        Latent sites and the network's weights, draws in front.
    sample_stats
        One number per draw: ``lp``, ``log_q``.
    log_likelihood
        Shape ``(draws, rows)``.
    posterior_predictive
        Draws of ``y``, same shape.
    observed
        The observed ``y`` of the same rows.
    losses
        Loss of every optimizer step.
    attributes
        Written on the root: method, seed, versions, ...
    """
    import arviz_base

    num_draws = len(log_likelihood)
    _check_rows("log_likelihood", tuple(log_likelihood.shape), (num_draws, len(observed)))
    _check_rows("posterior_predictive", posterior_predictive.shape, (num_draws, len(observed)))
    posterior = {**{name: _array(value) for name, value in sites.items()}}
    weights = {name: _array(value) for name, value in slots.items() if name not in posterior}
    everything = [*posterior.values(), *weights.values()]
    left_out = sum(value.nbytes for value in everything) > MAX_WEIGHT_BYTES
    if left_out:
        posterior = {k: v for k, v in posterior.items() if v.nbytes < MAX_WEIGHT_BYTES // 100}
    else:
        posterior |= weights
    tree: xarray.DataTree = arviz_base.from_dict(
        {
            "posterior": {name: value[None] for name, value in posterior.items()},
            "sample_stats": {name: _array(value)[None] for name, value in sample_stats.items()},
            "log_likelihood": {"y": _array(log_likelihood)[None]},
            "posterior_predictive": {"y": posterior_predictive[None]},
            "observed_data": {"y": observed},
        },
        dims={"y": ["obs_id"]},
        coords={"obs_id": np.arange(len(observed))},
    )
    tree["optimization"] = xarray.DataTree(
        xarray.Dataset({"loss": (("chain", "step"), _array(losses)[None])})
    )
    tree.attrs |= {"weights_left_out": int(left_out), **attributes}
    return tree


def write_tree(tree: xarray.DataTree, path: Path) -> None:
    """Write a tree to netCDF."""
    # HDF5 takes the process down when the disk is full, so it works in memory.
    path.write_bytes(tree.to_netcdf(engine="h5netcdf"))


def read_tree(path: str | Path) -> xarray.DataTree:
    """Read a tree that `write_tree` wrote.

    Raises
    ------
    StoreError
        If the file is missing or damaged.
    """
    try:
        with xarray.open_datatree(path, engine="h5netcdf") as opened:
            return opened.load()
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"cannot read the posterior {str(path)!r}: {error}") from None


def _check_rows(name: str, shape: tuple[int, ...], wanted: tuple[int, int]) -> None:
    # Wrong broadcasting gives (draws, draws, rows), which ArviZ accepts without a word.
    if shape != wanted:
        raise ValueError(f"{name} has shape {shape} instead of (draws, rows) = {wanted}")


def _array(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().numpy()
    return array
