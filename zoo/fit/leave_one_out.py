"""Leave-one-out of a network, from more draws than the tree stores.

The Pareto k of a row needs about a thousand draws to be told from its threshold; they are made in
chunks and only the results are kept.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from zoo.data import Dataset
from zoo.fit.importance import log_joint
from zoo.fit.result import Fitted, training_tensors
from zoo.infer.predict.draws import Draws, draw_posterior, log_posterior
from zoo.infer.psis import (
    leave_one_out,
    loo_pit,
    smoothed_log_weights,
    usable_khat,
)
from zoo.infer.svi.schedule import child_seed

Array = NDArray[Any]

#: Stream of random numbers for the draws.
LOO_STREAM = 6_000_000_011
#: Largest number of rows, thinned evenly; draws, fewer for large networks; and draws at a time.
MAX_ROWS, MIN_DRAWS, MAX_DRAWS, CHUNK = 1000, 100, 1000, 100
#: Largest product of draws and weights.
MAX_WEIGHTS = 200_000_000


def network_loo(fitted: Fitted, dataset: Dataset, *, corrected: bool) -> xarray.Dataset:
    """Return the group ``leave_one_out``: log density, Pareto k and PIT value of rows.

    ``corrected`` weights the draws of the guide by the posterior, which makes sense for few
    unknowns. Densities are in the units of the data.
    """
    rows = np.linspace(0, len(dataset.X_train) - 1, min(MAX_ROWS, len(dataset.X_train)))
    x, y = (part[rows.astype(int)] for part in (dataset.X_train, dataset.y_train))
    likelihoods, samples, weights = [], [], []
    for draws in _chunks(fitted):
        f = fitted.outputs(x, draws.values)
        likelihoods.append(fitted.log_likelihood(f, y, draws.values).double().cpu().numpy())
        samples.append(fitted.predictive(f, draws.values).samples)
        if corrected:
            model, guide = fitted.assembly.model, fitted.assembly.guide
            joint = log_joint(model, draws, *training_tensors(fitted.assembly, dataset))
            weights.append((joint - log_posterior(guide, draws).double()).cpu().numpy())
    log_likelihood = np.concatenate(likelihoods)
    finite = np.isfinite(log_likelihood).all(0)
    correction = _correction(weights)
    elpd, khat, smoothed = leave_one_out(log_likelihood[:, finite], correction)
    found: dict[str, Any] = {
        "elpd": ("loo_row", elpd - np.log(fitted.schema.target_scale)),
        "pareto_k": ("loo_row", khat),
    }
    if fitted.schema.task != "classification":
        replicated, observed = np.concatenate(samples)[:, finite], fitted.observed(y)[finite]
        found["pit"] = ("loo_row", loo_pit(replicated, observed, smoothed))
    attributes = {"draws": len(log_likelihood), "corrected": int(correction is not None)}
    return xarray.Dataset(found, attrs=attributes)


def _chunks(fitted: Fitted) -> Iterator[Draws]:
    """Return draws of the guide; statistics of normalisation exist for the stored ones only."""
    if fitted.buffers:
        yield fitted.draws
        return
    size = sum(value[0].numel() for value in fitted.draws.slots.values())
    number = int(np.clip(MAX_WEIGHTS // max(1, size), MIN_DRAWS, MAX_DRAWS))
    seed = child_seed(fitted.config.seed, LOO_STREAM)
    model, guide = fitted.assembly.model, fitted.assembly.guide
    for index in range(number // CHUNK):
        yield draw_posterior(model, guide, CHUNK, seed=child_seed(seed, index))


def _correction(weights: list[Array]) -> Array | None:
    """Return the log weights of the posterior, if they are usable."""
    if not weights:
        return None
    joined = np.concatenate(weights)
    if not np.isfinite(joined).all():
        return None
    return joined if smoothed_log_weights(joined)[1] <= usable_khat(len(joined)) else None
