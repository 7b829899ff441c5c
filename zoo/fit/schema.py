"""Conversion of draws to an `xarray.DataTree` in ArviZ's schema.

Diagnostics and reports use only the tree.
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
from zoo.fit.contents import list_contents
from zoo.fit.store import atomic_path
from zoo.infer.svi.ending import Ending

#: Weights whose draws take more than this are left out; the stored guide can draw them again.
MAX_WEIGHT_BYTES = 100 * 2**20

Array = NDArray[Any]
Arrays = Mapping[str, Tensor]


@dataclass(frozen=True)
class TreeParts:
    """The contents of a tree. Draws come first in every array; a part that is None has no group."""

    #: Draws of the latent sites.
    sites: Arrays
    #: One number per draw: ``log_prior``, ``log_q``, and ``lp`` if it is known.
    sample_stats: Arrays
    losses: Tensor
    #: Draws of the network's weights.
    slots: Arrays = field(default_factory=dict)
    #: Shape ``(draws, rows)``, like the draws of ``y`` from posterior and prior.
    log_likelihood: Tensor | None = None
    posterior_predictive: Array | None = None
    #: ``y`` of the same rows.
    observed: Array | None = None
    #: One number per draw for each site.
    log_prior: Arrays = field(default_factory=dict)
    #: Draws of sites and slots from the prior.
    prior: Arrays | None = None
    prior_predictive: Array | None = None
    #: The encoded rows.
    inputs: Array | None = None
    #: Identified functions at fixed rows, see `zoo.fit.comparable.function_group`.
    functions: xarray.Dataset | None = None
    #: ``y`` and ``log_density`` of test rows, ``pruned_log_density`` if weights are pruned, with
    #: ``probability`` of shape ``(rows, classes)`` or ``y_samples`` of shape ``(draws, rows)``.
    held_out: Mapping[str, Array] | None = None
    gradient_norms: Tensor | None = None
    #: Why training stopped: attributes and curves of the group ``optimization``.
    ending: Ending | None = None
    #: Fits from several starts, this one first, see `zoo.fit.comparable.restart_arrays`.
    restarts: Mapping[str, Array] = field(default_factory=dict)
    #: Changes of the ELBO, see `zoo.infer.stationarity`: ``elbo_gain`` and ``elbo_gain_error``
    #: for each ``move`` and ``factor``.
    gains: Mapping[str, Array] = field(default_factory=dict)
    #: Importance weights and reference moments, see `zoo.fit.importance`.
    importance: xarray.Dataset | None = None
    #: Leave-one-out results of rows, see `zoo.fit.leave_one_out`.
    leave_one_out: xarray.Dataset | None = None
    #: Further groups by name.
    groups: Mapping[str, xarray.Dataset] = field(default_factory=dict)
    #: Root attributes: method, seed, versions, ...
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
        if values is None:
            continue
        # Wrong broadcasting gives (draws, draws, rows), which ArviZ accepts silently.
        if values.shape != (len(values), num_rows):
            raise ValueError(
                f"{name} has shape {values.shape} instead of (draws, rows) = "
                f"{(len(values), num_rows)}"
            )
        groups[name] = {"y": values[None]}
    if parts.observed is not None:
        groups["observed_data"] = {"y": parts.observed}
    if parts.prior is not None and not left_out:
        groups["prior"] = _one_chain(_arrays(parts.prior))
    if parts.inputs is not None:
        groups["constant_data"] = {"x": parts.inputs}
    num_features = 0 if parts.inputs is None else parts.inputs.ndim - 1
    tree: xarray.DataTree = arviz_base.from_dict(
        {name: group for name, group in groups.items() if group or name == "posterior"},
        dims={"y": ["obs_id"], "x": ["obs_id", *(f"feature_{i}" for i in range(num_features))]},
        coords={"obs_id": np.arange(num_rows)},
    )
    for name, dataset in _own_groups(parts).items():
        tree[name] = xarray.DataTree(dataset)
    tree.attrs |= {"weights_left_out": int(left_out), **parts.attributes}
    list_contents(tree)
    return tree


def _posterior(parts: TreeParts) -> tuple[dict[str, Array], bool]:
    """Return sites and weights, and whether some were left out because of their size."""
    posterior = _arrays(parts.sites)
    weights = {k: v for k, v in _arrays(parts.slots).items() if k not in posterior}
    if sum(v.nbytes for v in [*posterior.values(), *weights.values()]) <= MAX_WEIGHT_BYTES:
        return posterior | weights, False
    return {k: v for k, v in posterior.items() if v.nbytes < MAX_WEIGHT_BYTES // 100}, True


def _own_groups(parts: TreeParts) -> dict[str, xarray.Dataset]:
    """Return the groups that ArviZ does not define: optimisation, functions, held-out rows."""
    history: dict[str, Any] = {"loss": (("chain", "step"), _array(parts.losses)[None])}
    if parts.gradient_norms is not None:
        norms = _array(parts.gradient_norms)[None]
        history["gradient_norm"] = (("chain", "gradient_step"), norms)
    further = {1: (), 2: ("held_out_row",), 3: ("point", "output")}
    for name, rows in parts.restarts.items():
        history[name] = (("restart", *further[rows.ndim]), rows)
    for name, values in parts.gains.items():
        history[name] = (("move", "factor") if values.ndim == 2 else (name,), values)
    attributes: dict[str, Any] = {}
    if parts.ending is not None:
        attributes = parts.ending.attributes()
        history |= {name: (("look",), v) for name, v in parts.ending.variables().items()}
    groups = {"optimization": xarray.Dataset(history, attrs=attributes), **parts.groups}
    if parts.functions is not None:
        groups["functions"] = parts.functions
    if parts.importance is not None:
        groups["importance"] = parts.importance
    if parts.leave_one_out is not None:
        groups["leave_one_out"] = parts.leave_one_out
    if parts.held_out is not None:
        dims_of = {
            "y": ("row",),
            "log_density": ("row",),
            "pruned_log_density": ("row",),
            "probability": ("row", "class"),
            "y_samples": ("draw", "row"),
        }
        groups["held_out"] = xarray.Dataset(
            {name: (dims_of[name], value) for name, value in parts.held_out.items()}
        )
    return groups


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
    """Write a tree to netCDF, atomically."""
    # HDF5 crashes the process when the disk is full, so the file is made in memory.
    content = tree.to_netcdf(engine="h5netcdf")
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_tree(path: str | Path) -> xarray.DataTree:
    """Read a tree written by `write_tree`."""
    try:
        with xarray.open_datatree(path, engine="h5netcdf") as opened:
            return opened.load()
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"cannot read the posterior {str(path)!r}: {error}") from None


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy()
    return array


def _arrays(values: Arrays) -> dict[str, Array]:
    return {name: _array(value) for name, value in values.items()}


def _one_chain(values: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value[None] for name, value in values.items()}
