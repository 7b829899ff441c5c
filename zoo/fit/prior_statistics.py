"""Statistics of data replicated from the prior, to see whether the prior can reach the data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.fit.references import Inputs, subsample
from zoo.fit.result import Fitted
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.predict.draws import draw_prior
from zoo.infer.svi.schedule import child_seed

Array = NDArray[Any]

#: Draws from the prior, training rows they are evaluated at, and features of the linear statistic.
PRIOR_DRAWS = 300
PRIOR_ROWS = 200
PRIOR_FEATURES = 10
#: Largest number of weights in all of these draws, and in a chunk of them.
MAX_WEIGHTS = 200_000_000
CHUNK_WEIGHTS = 20_000_000
#: Stream of random numbers for them.
CHECK_STREAM = 3_000_000_037


def prior_statistics(fitted: Fitted, dataset: Dataset) -> xarray.Dataset | None:
    """Return statistics of observed, prior and posterior data; None for an improper prior.

    Draws whose outputs overflow count as such: their statistics are NaN.
    """
    model = fitted.assembly.model
    rows = subsample(len(dataset.X_train), PRIOR_ROWS)
    x, y = dataset.X_train[rows], dataset.y_train[rows]
    statistics = Statistics(dataset.task, Inputs(x, PRIOR_FEATURES).linear(x), dataset.num_classes)
    size = sum(value[0].numel() for value in fitted.draws.slots.values())
    number = int(np.clip(MAX_WEIGHTS // max(size, 1), 20, PRIOR_DRAWS))
    chunk = int(np.clip(CHUNK_WEIGHTS // max(size, 1), 1, number))
    seed = child_seed(fitted.config.seed, CHECK_STREAM)
    replicated, spreads = [], []
    for first in range(0, number, chunk):
        prior = draw_prior(model, min(chunk, number - first), seed=child_seed(seed, first))
        if prior is None:
            return None
        values = prior.slots | statistics_of_draws(model, prior.slots, _rows(fitted, x))
        f = fitted.outputs(x, values)
        spreads.append(f.double().abs().flatten(1).median(1).values.cpu().numpy())
        replicated.append(statistics(_samples(fitted, f, values)))
    posterior = fitted.draws.values
    f = fitted.outputs(x, posterior)
    after = statistics(_samples(fitted, f, posterior))
    if dataset.task == "regression":  # noise that is too large is not what the prior holds back
        means = encoded(fitted, fitted.predictive(f, posterior).mean)
        after[:, -1] = explained_by(means, y)
    return xarray.Dataset(
        {
            "replicated": (("draw", "statistic"), np.concatenate(replicated)),
            "posterior": (("posterior_draw", "statistic"), after),
            "observed": ("statistic", statistics(y[None].astype(np.float64))[0]),
            "spread": ("draw", np.concatenate(spreads)),
        },
        coords={"statistic": list(statistics.names)},
    )


def _rows(fitted: Fitted, x: Array) -> Tensor:
    weight = next(fitted.assembly.model.parameters())
    return torch.as_tensor(x, dtype=weight.dtype, device=weight.device)


def _samples(fitted: Fitted, f: Tensor, values: Mapping[str, Tensor]) -> Array:
    """Return replicated targets in the units of encoded ones; NaN where outputs overflow."""
    finite = torch.isfinite(f).flatten(1).all(1)
    safe = torch.where(finite[:, None, None], f, torch.zeros_like(f))
    samples = encoded(fitted, fitted.predictive(safe, values).samples)
    samples[~finite.cpu().numpy()] = np.nan
    return samples


def encoded(fitted: Fitted, y: Array) -> Array:
    """Return targets or predictions in the units of encoded targets."""
    schema = fitted.schema
    return (np.asarray(y, np.float64) - schema.target_mean) / schema.target_scale


def explained_by(mean: Array, y: Array) -> float:
    """Return how many times as much a prediction explains as it leaves."""
    left = float(((y - mean) ** 2).sum())
    total = float(((y - y.mean()) ** 2).sum())
    return max(total - left, 0.0) / max(left, 1e-6 * total, 1e-300)


class Statistics:
    """Statistics of replicated data sets ``(draws, rows)``.

    Location and spread of numbers; the logarithm of the mean, and the zeros, of counts; the largest
    share of a class. And for all tasks the ratio of the variance that a linear function of the
    inputs explains to the rest: a prior that is too narrow for its weights cannot reach it, however
    wide the noise is.
    """

    def __init__(self, task: str, x: Array, num_classes: int) -> None:
        self.task, self.num_classes = task, num_classes
        basis = np.linalg.qr(x - x.mean(0))[0] if x.shape[1] else np.zeros((len(x), 0))
        self.basis = basis[:, : max(len(x) // 4, 1)]
        own = {
            "regression": ("median", "interquartile range"),
            "counts": ("log of the mean", "share of zeros"),
            "classification": ("largest share of a class",),
        }
        self.names = (*own[task], "ratio of explained variance to the rest")

    def __call__(self, y: Array) -> Array:
        """Return one row of statistics per data set."""
        with np.errstate(all="ignore"):
            if self.task == "classification":
                each = np.stack([y == label for label in range(self.num_classes)], -1)
                each = each.astype(np.float64)
                values = [each.mean(1).max(1)]
            elif self.task == "counts":
                each = np.log1p(y)[..., None]
                values = [np.log(y.mean(1) + 1 / y.shape[1]), (y == 0).mean(1)]
            else:
                each = y[..., None]
                low, middle, high = np.quantile(y, [0.25, 0.5, 0.75], axis=1)
                values = [middle, high - low]
            found = np.stack([*values, self._ratio(each)], 1)
        found[np.isnan(y).any(1)] = np.nan
        return np.asarray(found)

    def _ratio(self, each: Array) -> Array:
        centred = each - each.mean(1, keepdims=True)
        total = (centred**2).sum((1, 2))
        explained = (np.einsum("rk,drc->dkc", self.basis, centred) ** 2).sum((1, 2))
        share = np.where(total > 0, explained / np.where(total > 0, total, 1), 0.0)
        return np.asarray(share / np.maximum(1 - share, 1e-6))
