"""The truth beside a fitted Pyro model: NUTS on the same model, in the shape of the fit's tree."""

import json
from typing import Any

import numpy as np
import torch
import xarray

from zoo.fit.any_model import FittedModel
from zoo.fit.model_draws import densities_of
from zoo.truth.reference import truth


def truth_of_model(fitted: FittedModel, **options: Any) -> xarray.DataTree:
    """Sample the posterior of a fit's model by NUTS.

    Parameters
    ----------
    fitted
        The fit whose model is sampled.
    **options
        As for `zoo.truth`.
    """
    args, kwargs = fitted.full.arguments
    found = truth(fitted.full.model, args, kwargs, **options)
    tree = found.tree()
    chains, draws = next(iter(found.draws.values.values())).shape[:2]
    like = fitted.guide.some_tensor
    values = {
        name: torch.as_tensor(np.asarray(value).reshape(chains * draws, *value.shape[2:])).to(like)
        for name, value in found.draws.values.items()
    }
    joint = densities_of(fitted.full, values).log_joint.cpu().numpy().reshape(chains, draws)
    stats = tree["sample_stats"].to_dataset()
    stats["lp"] = (("chain", "draw"), joint)
    tree["sample_stats"] = xarray.DataTree(stats)
    tree.attrs |= {
        "kind": "nuts",
        "identified": ", ".join(found.draws.values),
        "recipe": json.dumps(found.recipe),
    }
    return tree
