"""What is kept of a fit to compare it with fits from other starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    """What is kept of one fit.

    Attributes
    ----------
    start
        Which start it had, see `zoo.fit.config.RunConfig`.
    elbo, elbo_error
        The final ELBO in nats and its standard error; not a number if training diverged.
    outputs_mean, outputs_sd
        Posterior mean and sd of the network's outputs at fixed rows, shape ``(points, outputs)``;
        empty if training diverged.
    log_density
        Log predictive density of each held-out row; empty if there are none.
    """

    start: int
    elbo: float
    elbo_error: float
    outputs_mean: Array
    outputs_sd: Array
    log_density: Array


#: The arrays of an outcome.
ARRAYS = ("outputs_mean", "outputs_sd", "log_density")


def restart_arrays(outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """Return outcomes as arrays with one row each; what diverged has no numbers."""
    found: dict[str, Array] = {
        "restart": np.array([outcome.start for outcome in outcomes]),
        "restart_elbo": np.array([outcome.elbo for outcome in outcomes]),
        "restart_elbo_error": np.array([outcome.elbo_error for outcome in outcomes]),
    }
    for name in ARRAYS:
        rows = [getattr(outcome, name) for outcome in outcomes]
        shape = max(rows, key=np.size).shape
        filled = [row if row.shape == shape else np.full(shape, np.nan) for row in rows]
        if math.prod(shape):
            found[f"restart_{name}"] = np.stack(filled)
    return found
