r"""How far draws are from reference draws, for a sampler and for an approximation.

A sampler is right if means and standard deviations differ by no more than Monte Carlo error:

.. math:: z = \frac{\hat\theta - \hat\theta_{ref}}{\sqrt{e^2 + e_{ref}^2}}

with :math:`e` the Monte Carlo standard errors of both (Vehtari et al. 2021). With :math:`m`
comparisons of correct samplers the largest :math:`|z|` exceeds 5 with probability at most
:math:`6 \cdot 10^{-7} m`, so 5 is the limit whatever the number of parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import arviz_stats
import numpy as np
import pandas as pd
import xarray

from zoo.diagnostics.sampling import mcse_sd

Draws = Mapping[str, np.ndarray]
LIMIT = 5.0


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation by parameter, and their Monte Carlo standard errors."""

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray


def scalars(values: Draws) -> dict[str, np.ndarray]:
    """Name every element of arrays of shape ``(chains, draws, n)``, counted from one."""
    named = {}
    for name, array in values.items():
        if array.ndim == 2:
            named[name] = array
        else:
            named |= {f"{name}[{i + 1}]": array[..., i] for i in range(array.shape[2])}
    return named


def moments(draws: Draws) -> Moments:
    """Summarise draws of shape ``(chains, draws)`` by parameter."""
    stacked = np.stack(list(draws.values()), -1)
    dataset = xarray.Dataset({"values": (("chain", "draw", "parameter"), stacked)})
    return Moments(
        tuple(draws),
        stacked.mean((0, 1)),
        stacked.std((0, 1), ddof=1),
        np.asarray(arviz_stats.mcse(stacked, method="mean")),
        mcse_sd(dataset)["values"].to_numpy(),
    )


def z_scores(ours: Moments, reference: Moments) -> dict[str, np.ndarray]:
    """Return differences of means and of standard deviations in combined standard errors."""
    _check_names(ours, reference)
    return {
        "mean": (ours.mean - reference.mean) / np.hypot(ours.mean_error, reference.mean_error),
        "sd": (ours.sd - reference.sd) / np.hypot(ours.sd_error, reference.sd_error),
    }


def agreement(ours: Moments, reference: Moments) -> dict[str, object]:
    """Return the columns of the table that say whether a sampler is right."""
    scores = z_scores(ours, reference)
    every = np.concatenate(list(scores.values()))
    largest = np.abs(every).max()
    names = [f"{kind} {name}" for kind in scores for name in ours.names]
    return {
        "comparisons": len(every),
        "largest |z|": float(largest),
        "of": names[int(np.abs(every).argmax())],
        "rms z": float(np.sqrt((every**2).mean())),
        "agrees": bool(largest < LIMIT),
    }


def distance(approximation: Moments, reference: Moments) -> dict[str, float]:
    """Return the columns of the table that say how far an approximation is."""
    _check_names(approximation, reference)
    shift = (approximation.mean - reference.mean) / reference.sd
    ratio = approximation.sd / reference.sd
    return {
        "max |mean diff|/sd": float(np.abs(shift).max()),
        "rms mean diff/sd": float(np.sqrt((shift**2).mean())),
        "min sd ratio": float(ratio.min()),
        "median sd ratio": float(np.median(ratio)),
        "max sd ratio": float(ratio.max()),
    }


def _check_names(ours: Moments, reference: Moments) -> None:
    if ours.names != reference.names:
        raise ValueError(
            f"parameters {ours.names} are not those of the reference {reference.names}"
        )


def as_text(table: pd.DataFrame) -> str:
    """Return the table for reading; what does not apply to a row is left blank."""
    return str(table.round(3).to_string(index=False, na_rep=""))
