"""The tree of a fit, from which diagnostics and report are computed."""

import contextlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo._version import __version__
from zoo.data import Dataset
from zoo.fit.comparable import (
    function_group,
    functions_of,
    held_out_log_density,
    held_out_rows,
    outcome_of,
    restart_arrays,
)
from zoo.fit.evidence_groups import evidence_groups, reference_metrics
from zoo.fit.importance import log_joint, network_importance
from zoo.fit.leave_one_out import network_loo
from zoo.fit.references import references
from zoo.fit.result import Fitted, training_tensors
from zoo.fit.schema import MAX_WEIGHT_BYTES, TreeParts, posterior_tree
from zoo.infer.predict.draws import Draws, draw_prior, log_posterior, site_log_priors
from zoo.infer.pruning.groups import GroupView
from zoo.infer.psis import MAX_DIMENSION
from zoo.infer.svi.schedule import child_seed
from zoo.likelihoods import Categorical
from zoo.network.bnn import BNN
from zoo.network.nets import choices

#: Largest number of elements of the training inputs that are stored.
MAX_INPUTS = 2_000_000
#: Stream of random numbers for draws from the prior.
PRIOR_STREAM = 3_000_000_019
#: Packages whose versions a report names.
PACKAGES = ("torch", "pyro-ppl", "arviz-base", "arviz-stats", "numpy")

Array = NDArray[Any]


def fit_tree(
    fitted: Fitted, dataset: Dataset, metrics: dict[str, float], groups: GroupView
) -> xarray.DataTree:
    """Return draws, log densities, predictions and the history of a fit as a DataTree."""
    model, draws = fitted.assembly.model, fitted.draws
    x, y = fitted.kept_rows(dataset)
    f = fitted.outputs(x, draws.values)
    likelihoods = fitted.log_likelihood(f, y, draws.values)
    log_priors = site_log_priors(model, draws)
    log_prior = torch.stack(list(log_priors.values())).sum(0)
    stats = {"log_prior": log_prior}
    with contextlib.suppress(NotImplementedError):  # the density of a guide may be unknown
        stats["log_q"] = log_posterior(fitted.assembly.guide, draws)
    names = readable_slots(model)
    few = sum(value[0].numel() for value in draws.sites.values()) <= MAX_DIMENSION
    if len(y) == len(dataset.y_train):  # the log joint needs all rows
        stats["lp"] = log_prior + likelihoods.double().sum(1)
    elif few:
        stats["lp"] = log_joint(model, draws, *training_tensors(fitted.assembly, dataset))
    is_improper = any(model.prior(name).is_improper for name in model.slots)
    weighed = few and bool(names) and "log_q" in stats and not is_improper
    prior = _prior_draws(fitted, draws)
    found = references(dataset) if len(dataset.X_test) else {}
    metrics = metrics | reference_metrics(dataset, found)
    restarts = {}
    if fitted.restarts:
        restarts = restart_arrays([outcome_of(fitted, dataset), *fitted.restarts])
    return posterior_tree(
        TreeParts(
            sites=draws.sites,
            slots=draws.slots,
            sample_stats=stats,
            log_likelihood=likelihoods,
            log_prior=log_priors,
            posterior_predictive=fitted.predictive(f, draws.values).samples,
            prior=None if prior is None else prior.sites | prior.slots,
            prior_predictive=None if prior is None else _prior_predictive(fitted, prior, x),
            observed=fitted.observed(y),
            inputs=x if x.size <= MAX_INPUTS else None,
            functions=_functions(fitted, dataset),
            held_out=_held_out(fitted, dataset, groups) if len(dataset.X_test) else None,
            losses=fitted.losses,
            gradient_norms=fitted.gradient_norms,
            ending=fitted.ending,
            restarts=restarts,
            gains=fitted.elbo_gains(dataset),
            importance=network_importance(fitted, dataset, names) if weighed else None,
            leave_one_out=network_loo(fitted, dataset, corrected=weighed),
            groups=evidence_groups(fitted, dataset, found, f, y),
            attributes=_attributes(fitted, dataset, metrics, groups, len(y))
            | _density_elbo(stats, likelihoods, len(dataset.y_train)),
        )
    )


def _functions(fitted: Fitted, dataset: Dataset) -> xarray.Dataset:
    model, values = fitted.assembly.model, fitted.draws.values
    functions, names = functions_of(model, values, dataset, mode=fitted.config.compile)
    return function_group(functions.cpu().numpy()[None], names, model.likelihood, dataset)


def _density_elbo(
    stats: Mapping[str, Tensor], likelihoods: Tensor, num_rows: int
) -> dict[str, float]:
    """Return the ELBO from densities and its error; empty if the guide's density is not known.

    With more rows than are scored one by one, the scored ones are an evenly spaced sample, and the
    error includes the variation over rows.
    """
    if "log_q" not in stats:
        return {}
    scored = likelihoods.double()
    count = scored.shape[1]
    draws = stats["log_prior"].double() - stats["log_q"].double()
    draws = draws + num_rows / count * scored.sum(1)
    variance = draws.var() / len(draws)
    if count < num_rows:
        left_out = 1 - count / num_rows
        variance = variance + num_rows**2 * scored.mean(0).var() / count * left_out
    return {
        "density_elbo": float(draws.mean()),
        "density_elbo_error": float(variance.sqrt()),
    }


def identified_slots(net: nn.Module, slots: list[str]) -> list[str]:
    """Return the slots that the data can identify: all of a linear model, none of a network.

    Permutations and signs of hidden units leave the function of a network unchanged, and only the
    product of a weight and the noise that multiplies it is identified.
    """
    layers = [m for m in net.modules() if any(True for _ in m.parameters(recurse=False))]
    is_linear = len(layers) == 1 and isinstance(layers[0], nn.Linear)
    parameters = {name for name, _ in net.named_parameters()}
    kinds = {name in parameters for name in slots if name != "noise"}
    return slots if is_linear and len(kinds) == 1 else []


def readable_slots(model: BNN) -> list[str]:
    """Return the slots whose values can be read: those that are identified, but not of a softmax.

    A common shift of all logits changes no probability, so only the prior holds their weights.
    """
    if isinstance(model.likelihood, Categorical):
        return []
    return identified_slots(model.net, list(model.slots))


def _prior_draws(fitted: Fitted, draws: Draws) -> Draws | None:
    num_bytes = sum(value.nbytes for value in (draws.sites | draws.slots).values())
    if num_bytes > MAX_WEIGHT_BYTES:
        return None
    seed = child_seed(fitted.config.seed, PRIOR_STREAM)
    return draw_prior(fitted.assembly.model, len(draws), seed=seed)


def _prior_predictive(fitted: Fitted, prior: Draws, x: Array) -> Array | None:
    values = prior.slots | fitted.buffers
    f = fitted.outputs(x, values)
    if not torch.isfinite(f).all():  # overflow of a prior with heavy tails
        return None
    samples: Array = fitted.predictive(f, values).samples
    return samples if np.isfinite(samples).all() else None


def _held_out(fitted: Fitted, dataset: Dataset, groups: GroupView) -> dict[str, Array]:
    x, y = held_out_rows(dataset)
    f = fitted.outputs(x, fitted.draws.values)
    prediction = fitted.predictive(f, fitted.draws.values)
    known = {"y": fitted.observed(y), "log_density": held_out_log_density(fitted, f, y)}
    if groups.weights_left_percent < 100:
        pruned = fitted.outputs(x, groups.prune(fitted.draws.values))
        known["pruned_log_density"] = held_out_log_density(fitted, pruned, y)
    if prediction.probabilities is not None:
        return known | {"probability": prediction.probabilities}
    return known | {"y_samples": prediction.samples}


def structure_edges(net: nn.Module, slots: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return the edges of a network with random structure, and the weights of their primitives."""
    edges: list[dict[str, Any]] = []
    for choice in choices(net):
        drawn = slots.get(f"{choice.module}.structure" if choice.module else "structure")
        weights = [1.0] if drawn is None else drawn.double().mean(0).tolist()
        if len(weights) == len(choice.primitives):
            edge = {"start": choice.start, "end": choice.end}
            edges.append(edge | {"primitives": list(choice.primitives), "weights": weights})
    return edges if any(len(edge["weights"]) > 1 for edge in edges) else []


def _attributes(
    fitted: Fitted, dataset: Dataset, metrics: dict[str, float], groups: GroupView, num_rows: int
) -> dict[str, Any]:
    assembly, config = fitted.assembly, fitted.config
    model = assembly.model
    priors = {name: str(prior) for name, prior in model.priors.items()}
    return common_attributes(config, fitted.draws.sites, priors, metrics) | {
        "method": config.method,
        "task": fitted.schema.task,
        "kind": "network",
        "trained": int(len(fitted.losses) > 0),
        "compresses": int(assembly.entry.compresses),
        "improper": int(any(model.prior(name).is_improper for name in model.slots)),
        "not_applicable": json.dumps(_not_applicable(fitted, dataset)),
        "loss_is_elbo": int(fitted.loss_is_elbo),
        "parameters": ", ".join(model.slots),
        "identified": ", ".join(readable_slots(model)),
        "groups": json.dumps(groups.to_dict()),
        "structure": json.dumps({"edges": structure_edges(model.net, fitted.draws.slots)}),
        "classes": json.dumps(list(fitted.schema.classes)),
        "summary": assembly.entry.summary,
        "reference": assembly.entry.reference,
        "command": "zoo fit --config config.yaml",
        "rows_left_out": len(dataset.X_train) - num_rows,
    }


def _not_applicable(fitted: Fitted, dataset: Dataset) -> dict[str, str]:
    """Return the checks that make no sense for this fit, with reasons."""
    reasons = {}
    if not fitted.loss_is_elbo:
        reasons["optimisation.objective"] = (
            "the loss of this method, or of its last steps, is no ELBO."
        )
    if any(fitted.assembly.model.prior(name).is_improper for name in fitted.assembly.model.slots):
        reasons["predictive.prior_check"] = "a prior is improper."
    if not len(dataset.X_test):
        reasons |= dict.fromkeys(("data.leak", "data.shift"), "there are no test rows.")
    return reasons


def common_attributes(
    config: Any, sites: Mapping[str, Tensor], priors: dict[str, str], metrics: dict[str, float]
) -> dict[str, Any]:
    """Return the attributes that fits of networks and of other models have in common."""
    versions = {"python": platform.python_version(), "pyro-zoo": __version__}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    return {
        "seed": config.seed,
        "dimension": sum(value[0].numel() for value in sites.values()),
        "config": json.dumps(config.model_dump(mode="json")),
        "priors": json.dumps(priors),
        "metrics": json.dumps(metrics),
        "versions": json.dumps(versions),
        "chain_kind": "independent draws from a variational posterior",
        "creation_library": "pyro-zoo",
        "creation_library_version": __version__,
        "inference_library": "pyro-ppl",
    }
