"""Groups of the tree that tell whether a fit is any good: references, data, prior, start, rows."""

from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.fit.comparable import held_out_log_density, held_out_rows
from zoo.fit.data_facts import data_facts
from zoo.fit.prior_statistics import encoded, prior_statistics
from zoo.fit.references import MAX_ROWS, Reference, prediction_error, subsample
from zoo.fit.result import Fitted
from zoo.fit.start import guide_functions
from zoo.infer.predict.draws import Prediction, observation_distribution
from zoo.infer.predict.scores import accuracy, brier, rmse
from zoo.infer.rng import seeded

Array = NDArray[Any]

#: Smallest number of replicated data sets, so that a p-value below 0.01 can be told.
MIN_REPLICATIONS = 400


def evidence_groups(
    fitted: Fitted, dataset: Dataset, found: dict[str, Reference], f: Tensor, y: Array
) -> dict[str, xarray.Dataset]:
    """Return the groups ``references``, ``data``, ``prior_statistics``, ``start`` and ``rows``.

    ``found`` are the references at all test rows, and ``f`` the outputs of the posterior draws at
    the training rows with targets ``y``. A group that makes no sense is left out.
    """
    groups = {"data": data_facts(dataset), "rows": row_group(fitted, f, y)}
    if found:
        groups["references"] = reference_group(fitted, dataset, found)
    prior = prior_statistics(fitted, dataset)
    if prior is not None:
        groups["prior_statistics"] = prior
    start, end = fitted.start_outputs, guide_functions(fitted.assembly, dataset)
    if start is not None and end is not None:
        groups["start"] = start_group(start, end)
    return groups


# ---------------------------------------------------------------------- references


def reference_group(
    fitted: Fitted, dataset: Dataset, found: dict[str, Reference]
) -> xarray.Dataset:
    """Return errors and log densities of fit and references at the held-out rows of the tree."""
    x, y = held_out_rows(dataset)
    f = fitted.outputs(x, fitted.draws.values)
    prediction = fitted.predictive(f, fitted.draws.values)
    shift = np.log(fitted.schema.target_scale)
    errors = [prediction_error(dataset.task, _mean(fitted, prediction), y)]
    densities = [held_out_log_density(fitted, f, y) + shift]
    for one in found.values():
        errors.append(prediction_error(dataset.task, one.prediction[: len(y)], y))
        densities.append(one.log_density[: len(y)])
    dims = ("reference", "row")
    # In units of its standard error: how clearly a reference gains on the training rows.
    gains = [np.nan, *(_in_errors(one.gains) for one in found.values())]
    return xarray.Dataset(
        {
            "error": (dims, np.stack(errors)),
            "log_density": (dims, np.stack(densities) - shift),
            "training_gain": ("reference", gains),
        },
        coords={"reference": ["fit", *found]},
        attrs={"rows": len(subsample(len(dataset.X_train), MAX_ROWS))},
    )


def _in_errors(gains: Array) -> float:
    error = float(np.std(gains)) / np.sqrt(len(gains))
    return float(np.mean(gains)) / error if error > 0 else 0.0


def reference_metrics(dataset: Dataset, found: dict[str, Reference]) -> dict[str, float]:
    """Return the scores of the references on all test rows, like those of the fit."""
    metrics: dict[str, float] = {}
    scale = dataset.schema.target_scale
    y = dataset.y_test
    for name, one in found.items():
        scores = {"nll": float(np.log(scale) - one.log_density.mean())}
        if dataset.task == "classification":
            scores["accuracy"] = accuracy(one.prediction, y)
            scores["brier"] = brier(one.prediction, y)
        else:
            scores["rmse"] = rmse(one.prediction, y) * scale
        metrics |= {f"reference.{name}.{score}": value for score, value in scores.items()}
    return metrics


def _mean(fitted: Fitted, prediction: Prediction) -> Array:
    """Return what was predicted in the units of encoded targets: means or probabilities."""
    if prediction.probabilities is not None:
        return prediction.probabilities
    return encoded(fitted, prediction.mean)


# ---------------------------------------------------------------------- start and rows


def start_group(start: Tensor, end: Tensor) -> xarray.Dataset:
    """Return mean and sd of the functions at fixed rows, before and after training."""
    dims = ("time", "point", "output")
    values = [_numbers(start), _numbers(end)]
    return xarray.Dataset(
        {
            "mean": (dims, np.stack([value.mean(0) for value in values])),
            "sd": (dims, np.stack([value.std(0) for value in values])),
        },
        coords={"time": ["start", "end"]},
    )


def row_group(fitted: Fitted, f: Tensor, y: Array) -> xarray.Dataset:
    """Return how improbable the least probable row is, for data and for replications.

    For every draw of the posterior: the smallest log likelihood over the training rows, of the
    data and of data replicated by this draw; and for every row its average log likelihood.
    """
    values = fitted.draws.values
    likelihoods = fitted.log_likelihood(f, y, values).double()
    number = -(-MIN_REPLICATIONS // len(f))
    with torch.no_grad(), seeded(fitted.config.seed, f.device):
        observation = observation_distribution(fitted.assembly.model, f, values.get("noise"))
        replicated = [observation.log_prob(observation.sample()).amin(1) for _ in range(number)]
    return xarray.Dataset(
        {
            "smallest": ("draw", _numbers(likelihoods.amin(1))),
            "smallest_replicated": (("replication", "draw"), _numbers(torch.stack(replicated))),
            "log_likelihood": ("row", _numbers(likelihoods.mean(0))),
        }
    )


def _numbers(values: Tensor) -> Array:
    array: Array = values.double().cpu().numpy()
    return array
