"""Comparison of fits: outputs at fixed rows, densities of held-out rows, and ELBOs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.fit.result import Fitted, training_tensors
from zoo.infer.predict.draws import log_predictive_density
from zoo.infer.svi.objective import elbo_draws

Array = NDArray[Any]

#: Rows at which functions are compared, and held-out rows that are kept.
NUM_POINTS = 32
MAX_HELD_OUT = 2000
#: Number of draws of an ELBO, and largest product of draws and rows.
MIN_ELBO_DRAWS, MAX_ELBO_DRAWS = 8, 64
ELBO_ENTRIES = 500_000


#: The arrays of an outcome.
ARRAYS = ("outputs_mean", "outputs_sd", "log_density")


@dataclass(frozen=True)
class Outcome:
    """The result of one fit, for comparison with fits from other starts.

    ELBO and standard error are NaN and the arrays empty if training diverged. The mean and sd of
    the network outputs have shape ``(points, outputs)``; the log predictive density has one element
    per held-out row.
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


def function_points(dataset: Dataset) -> Array:
    """Return the training rows at which functions are compared, spread over the data."""
    rows = np.linspace(0, len(dataset.X_train) - 1, min(NUM_POINTS, len(dataset.X_train)))
    points: Array = dataset.X_train[rows.astype(int)]
    return points


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
    x, y = training_tensors(fitted.assembly, dataset)
    number = int(np.clip(ELBO_ENTRIES // len(x), MIN_ELBO_DRAWS, MAX_ELBO_DRAWS))
    elbos = elbo_draws(fitted.assembly.model, fitted.assembly.guide, x, y, num_draws=number)
    outputs = fitted.outputs(function_points(dataset), fitted.draws.values).double()
    density = np.empty(0)
    held_out, targets = held_out_rows(dataset)
    if len(held_out):
        f = fitted.outputs(held_out, fitted.draws.values)
        density = held_out_log_density(fitted, f, targets)
    return Outcome(
        start=fitted.config.start,
        elbo=float(elbos.mean()),
        elbo_error=float(elbos.std()) / math.sqrt(number),
        outputs_mean=outputs.mean(0).cpu().numpy(),
        outputs_sd=outputs.std(0).cpu().numpy(),
        log_density=density,
    )
