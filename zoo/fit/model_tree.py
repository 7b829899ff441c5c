"""The tree of a fitted Pyro model, for diagnostics and report."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo._version import __version__
from zoo.fit.any_model import (
    PRIOR_STREAM,
    Densities,
    FittedModel,
    densities_of,
    full_size,
    is_observed,
    predictive_of,
    prior_of,
    trace_of,
)
from zoo.fit.schema import sampling_tree
from zoo.fit.tree import versions
from zoo.infer.predict.draws import Draws, log_posterior
from zoo.infer.svi.schedule import child_seed

#: Draws from the prior, which are made one by one.
PRIOR_DRAWS = 200
#: What a report of a network has, and one of another model does not.
LEFT_OUT = (
    "Held-out scores and calibration are left out: a Pyro model has no test rows.",
    "Pruning, compression and robustness are left out: they are about networks.",
)

Array = NDArray[Any]


def model_tree(fitted: FittedModel) -> xarray.DataTree:
    """Return draws, log densities, predictions and the history of a fit as a DataTree."""
    draws, left_out = fitted.draws, list(LEFT_OUT)
    stats: dict[str, Tensor] = {}
    with contextlib.suppress(NotImplementedError):
        stats["log_q"] = log_posterior(full_size(fitted.guide), Draws(draws, {}))
    if "log_q" not in stats:
        left_out.append("k-hat is left out: the density of this guide is not known.")
    groups: dict[str, Mapping[str, Array]] = {}
    if fitted.subsamples:
        left_out.append(
            "Checks of densities and of predictions are left out: the model subsamples its data. "
            "Give full_kwargs= with which it runs on all of them."
        )
    else:
        densities = densities_of(fitted.full, draws)
        stats |= {"lp": densities.log_joint, "log_prior": _total(densities.log_prior)}
        groups = _data_groups(fitted, densities, left_out)
    tree = sampling_tree(
        {name: _chain(value) for name, value in draws.items()},
        {name: _chain(value) for name, value in stats.items()},
        _attributes(fitted, left_out),
        groups,
    )
    history: dict[str, Any] = {"loss": (("chain", "step"), _array(fitted.losses)[None])}
    if fitted.gradient_norms is not None:
        history["gradient_norm"] = (
            ("chain", "gradient_step"),
            _array(fitted.gradient_norms)[None],
        )
    tree["optimization"] = xarray.DataTree(xarray.Dataset(history))
    return tree


def _data_groups(
    fitted: FittedModel, densities: Densities, left_out: list[str]
) -> dict[str, Mapping[str, Array]]:
    """Return likelihoods, predictions and data; several observed sites are one list of rows."""
    names = list(densities.log_likelihood)
    groups: dict[str, Mapping[str, Array]] = {
        "log_prior": {name: _chain(value) for name, value in densities.log_prior.items()}
    }
    if not names:
        left_out.append("Checks of predictions are left out: the model observes nothing.")
        return groups
    together = torch.cat([densities.log_likelihood[name] for name in names], dim=1)
    groups["log_likelihood"] = {"y": _chain(together)}
    if len(names) > 1:
        left_out.append(
            f"Predictive checks are left out: the model observes {len(names)} sites, "
            f"{', '.join(names)}."
        )
        return groups
    (name,) = names
    seed = child_seed(fitted.seed, PRIOR_STREAM)
    samples = predictive_of(fitted.full, fitted.draws, seed)
    first = {site: value[0] for site, value in fitted.draws.items()}
    nodes = trace_of(fitted.full, first).nodes
    observed = next(n["value"] for k, n in nodes.items() if is_observed(k, n, first))
    groups["posterior_predictive"] = {"y": _chain(samples[name])}
    groups["observed_data"] = {"y": _array(torch.as_tensor(observed).reshape(-1))}
    prior = prior_of(fitted.full, PRIOR_DRAWS, seed)
    if prior is None:
        left_out.append("Prior predictive checks are left out: a prior is improper.")
    else:
        groups["prior"] = {site: _chain(value) for site, value in prior[0].items()}
        groups["prior_predictive"] = {"y": _chain(prior[1][name])}
    return groups


def _attributes(fitted: FittedModel, left_out: list[str]) -> dict[str, Any]:
    elbo, error = fitted.elbo
    sites = fitted.draws
    nodes = _training_nodes(fitted)
    priors = {
        name: str(node["fn"])
        for name, node in nodes.items()
        if name in sites and node["type"] == "sample"
    }
    return {
        "method": fitted.model.name,
        "summary": fitted.model.summary,
        "seed": fitted.seed,
        "loss_is_elbo": 1,
        "dimension": sum(value[0].numel() for value in sites.values()),
        "parameters": ", ".join(sites),
        "identified": ", ".join(sites),
        "config": json.dumps(fitted.settings),
        "priors": json.dumps(priors),
        "metrics": json.dumps(
            {
                "elbo": elbo,
                "elbo_error": error,
                "steps": len(fitted.losses),
                "seconds": fitted.seconds,
            }
        ),
        "left_out": json.dumps(left_out),
        "versions": json.dumps(versions()),
        "chain_kind": "independent draws from a variational posterior",
        "creation_library": "pyro-zoo",
        "creation_library_version": __version__,
        "inference_library": "pyro-ppl",
    }


def _training_nodes(fitted: FittedModel) -> dict[str, Any]:
    """Return the sites of the model as a training step sees them."""
    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        sampled = poutine.trace(fitted.guide).get_trace()
        replayed = poutine.replay(fitted.model, trace=sampled)
        return dict(poutine.trace(replayed).get_trace().nodes)


def _total(parts: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([value.double() for value in parts.values()]).sum(0)


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy()
    return np.asarray(array)


def _chain(value: Tensor) -> Array:
    return _array(value)[None]
