"""The tree of a fitted Pyro model, for diagnostics and report."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
import xarray
from pyro.infer.inspect import get_dependencies
from torch import Tensor
from torch.distributions import TransformedDistribution

from zoo.fit.any_model import PRIOR_STREAM, FittedModel, full_size
from zoo.fit.importance import model_importance
from zoo.fit.model_draws import (
    Densities,
    densities_of,
    is_observed,
    predictive_of,
    prior_of,
    trace_of,
)
from zoo.fit.schema import TreeParts, posterior_tree
from zoo.fit.tree import common_attributes
from zoo.infer.predict.draws import Draws, log_posterior
from zoo.infer.psis import MAX_DIMENSION
from zoo.infer.svi.schedule import child_seed

#: Draws from the prior, which are made one by one.
PRIOR_DRAWS = 200
#: Checks that need the density of the guide, and those of predictions.
NEED_DENSITY = ("approximation.khat", "optimisation.objective")
POSTERIOR_CHECK, PRIOR_CHECK = "predictive.posterior_check", "predictive.prior_check"


@dataclass(frozen=True)
class Reasons:
    """Why checks of a fit make no sense, or could not be computed, by name of the check."""

    not_applicable: dict[str, str]
    unchecked: dict[str, str]


def model_tree(fitted: FittedModel) -> xarray.DataTree:
    """Return draws, log densities, predictions and the history of a fit as a DataTree."""
    draws, reasons = fitted.draws, Reasons({}, {})
    stats: dict[str, Tensor] = {}
    with contextlib.suppress(NotImplementedError):
        stats["log_q"] = log_posterior(full_size(fitted.guide), Draws(draws, {}))
    if "log_q" not in stats:
        reasons.unchecked.update(
            dict.fromkeys(NEED_DENSITY, "the density of this guide is not known.")
        )
    parts: dict[str, Any] = {}
    if fitted.subsamples:
        reason = (
            "the model subsamples its data. Give full_kwargs= with which it runs on all of them."
        )
        reasons.unchecked.update(dict.fromkeys((*NEED_DENSITY, POSTERIOR_CHECK), reason))
    else:
        densities = densities_of(fitted.full, draws)
        log_prior = torch.stack([value.double() for value in densities.log_prior.values()]).sum(0)
        stats |= {"lp": densities.log_joint, "log_prior": log_prior}
        parts = {"log_prior": densities.log_prior, **_data_parts(fitted, densities, reasons)}
        if "log_q" in stats and sum(value[0].numel() for value in draws.values()) <= MAX_DIMENSION:
            parts["importance"] = model_importance(fitted)
    return posterior_tree(
        TreeParts(
            sites=draws,
            sample_stats=stats,
            losses=fitted.losses,
            gradient_norms=fitted.gradient_norms,
            ending=fitted.ending,
            attributes=_attributes(fitted, reasons),
            **parts,
        )
    )


def _data_parts(fitted: FittedModel, densities: Densities, reasons: Reasons) -> dict[str, Any]:
    """Return likelihoods, predictions and data; several observed sites are one list of rows."""
    names = list(densities.log_likelihood)
    if not names:
        reasons.not_applicable[POSTERIOR_CHECK] = "the model observes nothing."
        return {}
    together = torch.cat([densities.log_likelihood[name] for name in names], dim=1)
    parts: dict[str, Any] = {"log_likelihood": together}
    if len(names) > 1:
        reasons.unchecked[POSTERIOR_CHECK] = (
            f"the model observes {len(names)} sites, {', '.join(names)}; only one is supported."
        )
        return parts
    (name,) = names
    seed = child_seed(fitted.config.seed, PRIOR_STREAM)
    first = {site: value[0] for site, value in fitted.draws.items()}
    nodes = trace_of(fitted.full, first).nodes
    observed = next(n["value"] for k, n in nodes.items() if is_observed(k, n, first))
    samples = predictive_of(fitted.full, fitted.draws, seed)
    parts["posterior_predictive"] = samples[name].cpu().numpy()
    parts["observed"] = torch.as_tensor(observed).reshape(-1).cpu().numpy()
    prior = prior_of(fitted.full, PRIOR_DRAWS, seed)
    if prior is None:
        reasons.not_applicable[PRIOR_CHECK] = "a prior is improper."
        return parts
    return parts | {"prior": prior[0], "prior_predictive": prior[1][name].cpu().numpy()}


def _attributes(fitted: FittedModel, reasons: Reasons) -> dict[str, Any]:
    elbo, error = fitted.elbo
    sites = fitted.draws
    priors = _priors(fitted)
    metrics = {"elbo": elbo, "elbo_error": error}
    metrics |= {"steps": len(fitted.losses), "seconds": fitted.seconds}
    return common_attributes(fitted.config, sites, priors, metrics) | {
        "method": fitted.model.name,
        "summary": fitted.model.summary,
        "loss_is_elbo": 1,
        "parameters": ", ".join(sites),
        "identified": ", ".join(sites),
        "kind": "model",
        "trained": int(len(fitted.losses) > 0),
        "not_applicable": json.dumps(reasons.not_applicable),
        "unchecked": json.dumps(reasons.unchecked),
    }


def _priors(fitted: FittedModel) -> dict[str, str]:
    """Describe the prior of every site: its numbers, or the sites on which they depend."""
    found: Any = None
    try:
        with pyro.settings.context(module_local_params=True), torch.random.fork_rng():
            found = get_dependencies(fitted.model)["prior_dependencies"]
    except (NotImplementedError, RuntimeError, ValueError):  # for example an improper prior
        pass
    priors = {}
    for name, node in _training_nodes(fitted).items():
        if name in fitted.draws and node["type"] == "sample":
            if found is None:  # its numbers may be those of one draw of other sites
                priors[name] = _family(node["fn"])[0]
                continue
            parents = [parent for parent in found.get(name, {}) if parent != name]
            priors[name] = prior_text(node["fn"], parents)
    return priors


def prior_text(prior: Any, parents: Sequence[str] = ()) -> str:
    """Describe a prior, for example ``Normal(loc=0, scale=5)`` or ``Normal given mu, tau``."""
    family, prior = _family(prior)
    if parents:
        return f"{family} given {', '.join(parents)}"
    numbers = []
    for name in prior.arg_constraints:
        is_own = name in vars(prior) or isinstance(getattr(type(prior), name, None), property)
        value = getattr(prior, name) if is_own else None
        if isinstance(value, Tensor) and value.numel():
            same = bool((value == value.flatten()[0]).all())
            text = f"{value.flatten()[0].item():.4g}" if same else f"{value.numel()} values"
            numbers.append(f"{name}={text}")
    return f"{family}({', '.join(numbers)})"


def _family(prior: Any) -> tuple[str, Any]:
    """Return the name of a distribution and the distribution, without plates and events."""
    while hasattr(prior, "base_dist") and not isinstance(prior, TransformedDistribution):
        prior = prior.base_dist
    return type(prior).__name__, prior


def _training_nodes(fitted: FittedModel) -> dict[str, Any]:
    """Return the sites of the model as a training step sees them."""
    with pyro.validation_enabled(False), pyro.settings.context(module_local_params=True):
        sampled = poutine.trace(fitted.guide).get_trace()
        replayed = poutine.replay(fitted.model, trace=sampled)
        return dict(poutine.trace(replayed).get_trace().nodes)
