"""What fits are compared by: outputs at fixed rows, densities of held-out rows, ELBOs."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.fit.outcome import Outcome
from zoo.fit.result import Fitted, training_tensors
from zoo.infer.predict.draws import log_predictive_density
from zoo.infer.svi.objective import elbo_draws

Array = NDArray[Any]

#: Rows at which functions are compared, and held-out rows that are kept.
NUM_POINTS = 32
MAX_HELD_OUT = 2000
#: Draws behind an ELBO, and how many times rows they may be together.
MIN_ELBO_DRAWS, MAX_ELBO_DRAWS = 8, 64
ELBO_ENTRIES = 500_000


def function_points(dataset: Dataset) -> Array:
    """Return the training rows at which functions are compared, spread over the data."""
    rows = np.linspace(0, len(dataset.X_train) - 1, min(NUM_POINTS, len(dataset.X_train)))
    points: Array = dataset.X_train[rows.astype(int)]
    return points


def held_out_rows(dataset: Dataset) -> tuple[Array, Array]:
    """Return the test rows that are kept, encoded."""
    return dataset.X_test[:MAX_HELD_OUT], dataset.y_test[:MAX_HELD_OUT]


def held_out_log_density(fitted: Fitted, f: Tensor, y: Array) -> Array:
    """Return the log predictive density of rows in the units of the data.

    ``f`` are outputs of the draws of the fit at these rows, and ``y`` the encoded targets.
    """
    likelihoods = fitted.log_likelihood(f, y, fitted.draws.values)
    density: Array = log_predictive_density(likelihoods).cpu().double().numpy()
    # A density in standardised units is larger by the scale than one in the units of y.
    density -= np.log(fitted.schema.target_scale)
    return density


def outcome_of(fitted: Fitted, dataset: Dataset) -> Outcome:
    """Return what is kept of a fit to compare it with others."""
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
