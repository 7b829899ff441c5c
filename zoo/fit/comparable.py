"""Comparison of fits: functions at fixed rows, densities of held-out rows, and ELBOs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.fit.result import Fitted
from zoo.infer.predict.draws import log_predictive_density
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.recording import Mode
from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN

Array = NDArray[Any]

#: Rows at which functions are compared, and held-out rows that are kept.
NUM_POINTS = 32
MAX_HELD_OUT = 2000

#: The arrays of an outcome.
ARRAYS = ("outputs_mean", "outputs_sd", "log_density")


@dataclass(frozen=True)
class Outcome:
    """The result of one fit, for comparison with fits from other starts.

    ELBO and standard error are NaN and the arrays empty if training diverged. The mean and sd of
    the identified functions have shape ``(points, outputs)``; the log predictive density has one
    element per held-out row.
    """

    start: int
    elbo: float
    elbo_error: float
    outputs_mean: Array
    outputs_sd: Array
    log_density: Array


def restart_arrays(outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """Stack outcomes to arrays with one row each; those of diverged fits are NaN."""
    numbers = {"restart": "start", "restart_elbo": "elbo", "restart_elbo_error": "elbo_error"}
    found: dict[str, Array] = {
        name: np.array([getattr(outcome, field) for outcome in outcomes])
        for name, field in numbers.items()
    }
    for name in ARRAYS:
        rows = [getattr(outcome, name) for outcome in outcomes]
        shape = max(rows, key=np.size).shape
        filled = [row if row.shape == shape else np.full(shape, np.nan) for row in rows]
        if math.prod(shape):
            found[f"restart_{name}"] = np.stack(filled)
    return found


def function_rows(dataset: Dataset) -> Array:
    """Return the numbers of the training rows at which functions are compared, evenly spread."""
    rows = np.linspace(0, len(dataset.X_train) - 1, min(NUM_POINTS, len(dataset.X_train)))
    return rows.astype(int)


def functions_of(
    model: BNN, values: Mapping[str, Tensor], dataset: Dataset, *, mode: Mode = "auto"
) -> tuple[Tensor, list[str]]:
    """Return the identified functions, shape ``(draws, points, outputs)``, and their names.

    Fit, truth and restarts are compared by these, see `zoo.likelihoods.Likelihood.functions`. The
    values are those of the network, with draws as the first dimension.
    """
    like = next(model.parameters())
    x = torch.as_tensor(dataset.X_train[function_rows(dataset)], dtype=like.dtype).to(like.device)
    f = network_outputs(model, values, x, mode=mode)
    functions = model.likelihood.functions(f, dataset.schema.classes)
    return torch.stack(list(functions.values()), -1), list(functions)


def function_group(
    values: Array, names: Sequence[str], likelihood: Likelihood, dataset: Dataset
) -> xarray.Dataset:
    """Return the group ``functions`` of a tree; values are ``(chains, draws, points, outputs)``.

    The coordinates are numbers of training rows and names of outputs. The attribute ``resolution``
    is that of the likelihood.
    """
    attributes = {"resolution": likelihood.resolution}
    return xarray.Dataset(
        {"f": (("chain", "draw", "point", "output"), values, attributes)},
        coords={"point": function_rows(dataset), "output": list(names)},
    )


def held_out_rows(dataset: Dataset) -> tuple[Array, Array]:
    """Return the first encoded test rows."""
    return dataset.X_test[:MAX_HELD_OUT], dataset.y_test[:MAX_HELD_OUT]


def held_out_log_density(fitted: Fitted, f: Tensor, y: Array) -> Array:
    """Return the log predictive density in the units of the data, given outputs of the draws."""
    likelihoods = fitted.log_likelihood(f, y, fitted.draws.values)
    density: Array = log_predictive_density(likelihoods).cpu().double().numpy()
    # A density in standardised units is larger by the scale than one in the units of y.
    density -= np.log(fitted.schema.target_scale)
    return density


def outcome_of(fitted: Fitted, dataset: Dataset) -> Outcome:
    """Return the result of a fit."""
    elbo, elbo_error = fitted.elbo(dataset)
    model, values = fitted.assembly.model, fitted.draws.values
    outputs = functions_of(model, values, dataset, mode=fitted.config.compile)[0].double()
    density = np.empty(0)
    held_out, targets = held_out_rows(dataset)
    if len(held_out):
        f = fitted.outputs(held_out, fitted.draws.values)
        density = held_out_log_density(fitted, f, targets)
    return Outcome(
        start=fitted.config.start,
        elbo=elbo,
        elbo_error=elbo_error,
        outputs_mean=outputs.mean(0).cpu().numpy(),
        outputs_sd=outputs.std(0).cpu().numpy(),
        log_density=density,
    )
