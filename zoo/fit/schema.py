"""Draws to `xarray.DataTree` in ArviZ's schema. The only file that knows that schema.

Tensors end here: diagnostics and reports see the tree and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
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

Array = NDArray[Any]
Arrays = Mapping[str, Tensor]


@dataclass(frozen=True)
class TreeParts:
    """What is known of a fit. Draws come first in every array; a part that is None has no group.

    Attributes
    ----------
    sites, slots
        Latent sites and the network's weights.
    sample_stats
        One number per draw: ``log_prior``, ``log_q``, and ``lp`` where it is known.
    log_likelihood
        Shape ``(draws, rows)``.
    log_prior
        One number per draw for each site.
    posterior_predictive, prior_predictive
        Draws of ``y``, shape ``(draws, rows)``.
    prior
        Draws of sites and slots from the prior.
    observed
        The observed ``y`` of the same rows.
    inputs
        The rows themselves, encoded.
    functions
        Outputs of the network at fixed rows, shape ``(draws, points, outputs)``.
    held_out
        Observed ``y`` of rows that were not trained on and their log predictive density, with
        ``probability`` of shape ``(rows, classes)`` or ``y_samples`` of shape ``(draws, rows)``.
    losses
        Loss of every optimizer step.
    gradient_norms
        Norm of the gradient, at some of the steps.
    restarts
        Fits from several starts, this one first, with one row each: ``restart`` (their numbers),
        ``restart_elbo``, ``restart_elbo_error``, ``restart_outputs_mean``, ``restart_outputs_sd``
        and ``restart_log_density``.
    gains
        What moves of the posterior would add to the ELBO (``elbo_gain``, ``elbo_gain_error``), with
        the names of the ``move`` and the ``factor`` of each, see `zoo.infer.stationarity`.
    attributes
        Written on the root: method, seed, versions, ...
    """

    sites: Arrays
    sample_stats: Arrays
    losses: Tensor
    slots: Arrays = field(default_factory=dict)
    log_likelihood: Tensor | None = None
    posterior_predictive: Array | None = None
    observed: Array | None = None
    log_prior: Arrays = field(default_factory=dict)
    prior: Arrays | None = None
    prior_predictive: Array | None = None
    inputs: Array | None = None
    functions: Tensor | None = None
    held_out: Mapping[str, Array] | None = None
    gradient_norms: Tensor | None = None
    restarts: Mapping[str, Array] = field(default_factory=dict)
    gains: Mapping[str, Array] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


def posterior_tree(parts: TreeParts) -> xarray.DataTree:
    """Build the tree of one fit."""
    import arviz_base

    posterior, left_out = _posterior(parts)
    groups: dict[str, Mapping[str, Array]] = {
        "posterior": _one_chain(posterior),
        "sample_stats": _one_chain(_arrays(parts.sample_stats)),
        "log_prior": _one_chain(_arrays(parts.log_prior)),
    }
    likelihood = None if parts.log_likelihood is None else _array(parts.log_likelihood)
    num_rows = 0 if likelihood is None else likelihood.shape[-1]
    for name, values in (
        ("log_likelihood", likelihood),
        ("posterior_predictive", parts.posterior_predictive),
        ("prior_predictive", parts.prior_predictive),
    ):
        if values is not None:
            _check_rows(name, values.shape, (len(values), num_rows))
            groups[name] = {"y": values[None]}
    if parts.observed is not None:
        groups["observed_data"] = {"y": parts.observed}
    if parts.prior is not None and not left_out:
        groups["prior"] = _one_chain(_arrays(parts.prior))
    if parts.inputs is not None:
        groups["constant_data"] = {"x": parts.inputs}
    tree: xarray.DataTree = arviz_base.from_dict(
        {name: group for name, group in groups.items() if group or name == "posterior"},
        dims={"y": ["obs_id"], "x": ["obs_id", *_dims("feature", parts.inputs)]},
        coords={"obs_id": np.arange(num_rows)},
    )
    for name, dataset in _own_groups(parts).items():
        tree[name] = xarray.DataTree(dataset)
    tree.attrs |= {"weights_left_out": int(left_out), **parts.attributes}
    return tree


def _posterior(parts: TreeParts) -> tuple[dict[str, Array], bool]:
    """Return sites and weights, and whether some were left out for their size."""
    posterior = _arrays(parts.sites)
    weights = {k: v for k, v in _arrays(parts.slots).items() if k not in posterior}
    if sum(v.nbytes for v in [*posterior.values(), *weights.values()]) <= MAX_WEIGHT_BYTES:
        return posterior | weights, False
    return {k: v for k, v in posterior.items() if v.nbytes < MAX_WEIGHT_BYTES // 100}, True


def _own_groups(parts: TreeParts) -> dict[str, xarray.Dataset]:
    """Return the groups that are not ArviZ's: the optimisation, functions, and rows held out."""
    history: dict[str, Any] = {"loss": (("chain", "step"), _array(parts.losses)[None])}
    if parts.gradient_norms is not None:
        norms = _array(parts.gradient_norms)[None]
        history["gradient_norm"] = (("chain", "gradient_step"), norms)
    further = {1: (), 2: ("held_out_row",), 3: ("point", "output")}
    for name, rows in parts.restarts.items():
        history[name] = (("restart", *further[rows.ndim]), rows)
    for name, values in parts.gains.items():
        history[name] = (("move", "factor") if values.ndim == 2 else (name,), values)
    groups = {"optimization": xarray.Dataset(history)}
    if parts.functions is not None:
        dims = ("chain", "draw", "point", "output")
        groups["functions"] = xarray.Dataset({"f": (dims, _array(parts.functions)[None])})
    if parts.held_out is not None:
        dims_of = {
            "y": ("row",),
            "log_density": ("row",),
            "probability": ("row", "class"),
            "y_samples": ("draw", "row"),
        }
        groups["held_out"] = xarray.Dataset(
            {name: (dims_of[name], value) for name, value in parts.held_out.items()}
        )
    return groups


def _dims(name: str, array: Array | None) -> list[str]:
    """Name the dimensions of rows: one feature, or several."""
    return [] if array is None else [f"{name}_{i}" for i in range(array.ndim - 1)]


def sampling_tree(
    posterior: Mapping[str, Array], sample_stats: Mapping[str, Array], attributes: Mapping[str, Any]
) -> xarray.DataTree:
    """Build the tree of MCMC draws by site, whose arrays start with chains and draws."""
    import arviz_base

    tree: xarray.DataTree = arviz_base.from_dict(
        {"posterior": dict(posterior), "sample_stats": dict(sample_stats)}
    )
    tree.attrs |= dict(attributes)
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


def _check_rows(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    # Wrong broadcasting gives (draws, draws, rows), which ArviZ accepts silently.
    if shape != wanted:
        raise ValueError(f"{name} has shape {shape} instead of (draws, rows) = {wanted}")


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy()
    return array


def _arrays(values: Arrays) -> dict[str, Array]:
    return {name: _array(value) for name, value in values.items()}


def _one_chain(values: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value[None] for name, value in values.items()}
