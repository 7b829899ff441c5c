"""The truth of any fitted Pyro model: NUTS on the same model, as a tree."""

from typing import Any

import xarray

from zoo.fit.any_model import FittedModel, densities_of
from zoo.truth.reference import joined_chains, truth


def truth_of_model(fitted: FittedModel, **options: Any) -> xarray.DataTree:
    """Sample the posterior of the model of a fit with NUTS; options as for `zoo.truth`."""
    args, kwargs = fitted.full.arguments
    found = truth(fitted.full.model, args, kwargs, **options)
    like = fitted.guide.some_tensor
    values = {name: value.to(like) for name, value in joined_chains(found.draws.values).items()}
    joint = densities_of(fitted.full, values).log_joint.cpu().numpy()
    tree = found.tree(joint.reshape(found.draws.stats["diverging"].shape))
    tree.attrs |= {"kind": "nuts", "identified": ", ".join(found.draws.values)}
    return tree
