"""The truth of a fit: NUTS on the same model and data, as a tree with the groups of the fit."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.errors import ConfigError
from zoo.fit.any_model import FittedModel
from zoo.fit.comparable import function_group, functions_of
from zoo.fit.model_draws import densities_of
from zoo.fit.result import Fitted, target_tensor
from zoo.fit.tree import readable_slots
from zoo.infer.predict.draws import Draws, draw_prior, log_likelihood, site_log_priors, slots_of
from zoo.infer.predict.outputs import network_outputs
from zoo.truth.criteria import Values
from zoo.truth.reference import Truth, joined_chains, truth

Array = NDArray[Any]

#: Largest number of unknowns and rows for NUTS.
MAX_UNKNOWNS = 2000
MAX_ROWS = 20_000
#: Draws of a fit from which paths to starting points begin.
NUM_POINTS = 8


def truth_of(fitted: Fitted, dataset: Dataset, **options: Any) -> tuple[Truth, xarray.DataTree]:
    """Sample the posterior of the model of a fit with NUTS; options as for `zoo.truth`.

    The reported quantities are the identified functions at the rows of
    `zoo.fit.comparable.function_rows`, and the identified parameters. The weights of a network are
    not identified. Returns the truth, and its tree with the groups used by the diagnostics.
    """
    if not fitted.assembly.model.method.has_posterior:
        raise ConfigError(
            f"{fitted.config.method!r} does not define a posterior that NUTS could sample."
        )
    size = sum(value[0].numel() for value in fitted.draws.sites.values())
    if size > MAX_UNKNOWNS or len(dataset.X_train) > MAX_ROWS:
        raise ConfigError(
            f"NUTS accepts at most {MAX_UNKNOWNS} unknowns and {MAX_ROWS} rows; this problem has "
            f"{size} unknowns and {len(dataset.X_train)} rows."
        )
    sampled = _Sampled(fitted, dataset)
    if draw_prior(sampled.model, 1, seed=0) is None:
        raise ConfigError(
            "a prior of this model is improper and has no proper counterpart, so NUTS cannot "
            "sample it. Give a proper one, such as SmoothLogUniform(-8, 2) for a log-uniform prior."
        )
    options = {"points": points_of(fitted.draws.sites)} | options
    found = truth(sampled.model, sampled.data, quantities=sampled.quantities, **options)
    return found, sampled.tree(found)


def truth_of_model(fitted: FittedModel, **options: Any) -> xarray.DataTree:
    """Sample the posterior of the model of a fit with NUTS; options as for `zoo.truth`."""
    args, kwargs = fitted.full.arguments
    options = {"points": points_of(fitted.draws)} | options
    found = truth(fitted.full.model, args, kwargs, **options)
    like = fitted.guide.some_tensor
    values = {name: value.to(like) for name, value in joined_chains(found.draws.values).items()}
    joint = densities_of(fitted.full, values).log_joint.cpu().numpy()
    tree = found.tree(joint.reshape(found.draws.stats["diverging"].shape))
    tree.attrs |= {"kind": "nuts", "identified": ", ".join(found.draws.values)}
    return tree


def points_of(draws: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return some draws of a fit one by one, from which chains may start."""
    number = min(NUM_POINTS, *(len(value) for value in draws.values()))
    return [
        {name: value[row].detach().cpu() for name, value in draws.items()} for row in range(number)
    ]


class _Sampled:
    """The model of a fit in double precision, and the conversion of its NUTS draws.

    Improper priors are replaced by their proper counterparts; fitted priors are those of the fit.
    """

    def __init__(self, fitted: Fitted, dataset: Dataset) -> None:
        self.model = fitted.assembly.model.proper().cpu().double().eval()
        self.model.autocast = False
        self.counterparts = {
            f"prior of {name}": str(prior)
            for name, prior in self.model.priors.items()
            if prior != fitted.assembly.model.priors[name]
        }
        self.names = readable_slots(self.model)
        y = target_tensor(fitted.assembly, dataset.y_train).cpu()
        x = torch.as_tensor(dataset.X_train, dtype=torch.float64)
        self.data = (x, y.double() if y.is_floating_point() else y)
        self.dataset = dataset
        self.outputs: list[str] = []

    def quantities(self, values: Values) -> dict[str, Array]:
        """Return functions and identified parameters, shape ``(chains, draws, ...)``."""
        chains, draws = next(iter(values.values())).shape[:2]
        slots = slots_of(self.model, joined_chains(values))
        functions, self.outputs = functions_of(self.model, slots, self.dataset)
        found = {"f": functions} | {name: slots[name] for name in self.names}
        return {k: v.numpy().reshape(chains, draws, *v.shape[1:]) for k, v in found.items()}

    def log_joint(self, values: Values) -> Array:
        """Return the log joint in constrained space, as for the fit."""
        sites = joined_chains(values)
        slots = slots_of(self.model, sites)
        priors = site_log_priors(self.model, Draws(sites, slots))
        f = network_outputs(self.model, slots, self.data[0])
        likelihood = log_likelihood(self.model, f, slots.get("noise"), self.data[1]).sum(1)
        total = torch.stack(list(priors.values())).sum(0) + likelihood
        joint: Array = total.numpy().reshape(next(iter(values.values())).shape[:2])
        return joint

    def tree(self, found: Truth) -> xarray.DataTree:
        """Return the tree of the truth with functions, identified parameters and the log joint."""
        # Log joints of different models are not comparable.
        tree = found.tree(None if self.counterparts else self.log_joint(found.draws.values))
        posterior = tree["posterior"].to_dataset()
        for name in self.names:
            if name not in posterior:
                value = found.quantities[name]
                dims = ("chain", "draw", *(f"{name}_dim_{i}" for i in range(value.ndim - 2)))
                posterior[name] = (dims, value)
        tree["posterior"] = xarray.DataTree(posterior)
        functions = found.quantities["f"], self.outputs, self.model.likelihood, self.dataset
        tree["functions"] = xarray.DataTree(function_group(*functions))
        recipe = json.dumps(found.recipe | self.counterparts)
        tree.attrs |= {"kind": "nuts", "identified": ", ".join(self.names), "recipe": recipe}
        return tree
