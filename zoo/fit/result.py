"""`Fitted`: a fitted posterior as data, and its predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from guides.hypernetwork import HypernetworkGuide
from zoo.data import Dataset, Schema
from zoo.errors import ConfigError, DataError
from zoo.fit.build import DTYPES, PREDICT_STREAM, Assembly
from zoo.fit.config import RunConfig
from zoo.infer.normalisation import statistics_of_draws, tracked_layers
from zoo.infer.predict.draws import (
    Draws,
    Prediction,
    draw_posterior,
    log_likelihood,
    log_predictive_density,
    predictive,
)
from zoo.infer.predict.outputs import network_outputs, row_outputs
from zoo.infer.predict.scores import accuracy, brier, crps, expected_calibration_error, rmse
from zoo.infer.pruning.codebooks import quantized_view
from zoo.infer.pruning.groups import GroupView, group_view
from zoo.infer.stationarity import FACTORS, MOVES, elbo_gains
from zoo.infer.svi.bound import elbo_and_error
from zoo.infer.svi.ending import Ending
from zoo.infer.svi.objective import total_divergence
from zoo.infer.svi.schedule import child_seed
from zoo.likelihoods import Bernoulli

if TYPE_CHECKING:
    from zoo.fit.comparable import Outcome

#: Rows and draws that decide whether pruning costs too much.
PRUNING_ROWS = 2000
PRUNING_DRAWS = 32
#: Largest product of draws and training rows that is scored and kept in the tree.
MAX_TREE_ENTRIES = 500_000

Array = NDArray[Any]


@dataclass(frozen=True)
class Fitted:
    """A fitted posterior.

    Attributes
    ----------
    assembly
        The method, its configuration, model and guide.
    schema
        The encoding of rows.
    losses, gradient_norms
        Loss of every optimizer step, and norm of the gradient at some steps.
    seconds
        Training time.
    path
        The run directory, if the fit is stored.
    dataset
        The training and test data. A fit loaded from disk has no data, gradient norms or restarts.
    buffers
        Statistics of normalisation layers for each posterior draw.
    restarts
        Results of fits from other starts.
    ending
        Why training stopped, and how far it was from convergence.
    start_outputs
        Outputs of some draws at fixed rows before training.
    """

    assembly: Assembly
    schema: Schema
    losses: Tensor
    seconds: float
    path: Path | None = None
    dataset: Dataset | None = None
    gradient_norms: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)
    restarts: "tuple[Outcome, ...]" = ()
    ending: Ending | None = None
    start_outputs: Tensor | None = None

    @property
    def config(self) -> RunConfig:
        """The configuration, with every default filled in."""
        return self.assembly.config

    @cached_property
    def draws(self) -> Draws:
        """Posterior draws, the same ones every time."""
        return replace(self._draw(self.config.num_samples), buffers=self.buffers)

    def _draw(self, num_samples: int) -> Draws:
        model, guide = self.assembly.model, self.assembly.guide
        return draw_posterior(model, guide, num_samples, seed=self._prediction_seed)

    def _first_draws(self, num_samples: int) -> Draws:
        """Return draws of the fit, or new ones if more are requested than it has."""
        if 1 <= num_samples <= len(self.draws):
            return self.draws.first(num_samples)
        if self.buffers:
            raise ConfigError(
                f"this network has batch normalisation, whose statistics are stored for "
                f"{len(self.draws)} draws. Got num_samples={num_samples}."
            )
        return self._draw(num_samples)

    @property
    def _prediction_seed(self) -> int:
        return child_seed(self.config.seed, PREDICT_STREAM)

    def at(self, complexity: float, dataset: Dataset | None = None) -> Self:
        """Return the fit of a hypernetwork at another weight of the complexity, without training.

        Parameters
        ----------
        complexity
            Weight of the divergence: the larger, the simpler the network.
        dataset
            The data, for a fit that was loaded from disk and has batch normalisation.
        """
        guide = self.assembly.guide
        if not isinstance(guide, HypernetworkGuide):
            raise ConfigError(
                f"{self.config.method!r} was trained for one complexity. Fit 'hypernetwork' to "
                "choose it afterwards."
            )
        try:
            assembly = replace(self.assembly, guide=guide.at(complexity))
        except ValueError as error:
            raise ConfigError(f"{error}.") from None
        moved = replace(self, assembly=assembly, buffers={}, restarts=())
        if not self.buffers:
            return moved
        rows = self._rows(self.data(dataset).X_train)
        buffers = statistics_of_draws(assembly.model, moved.draws.slots, rows)
        return replace(moved, buffers=buffers)

    # ------------------------------------------------------------------ prediction

    def predict(
        self, X: Any, *, num_samples: int | None = None, per_row: bool = False
    ) -> Prediction:
        """Predict new rows.

        Parameters
        ----------
        X
            A data frame with the columns of the training data, or an array of raw values.
        num_samples
            Number of posterior draws; by default those of the fit.
        per_row
            Use independent draws for each row instead of functions that are joint over the rows
            (see `zoo.infer.predict.outputs.row_outputs`).
        """
        x = self._encode(X)
        num_samples = self.config.num_samples if num_samples is None else num_samples
        if not per_row:
            values = self._first_draws(num_samples).values
            return self.predictive(self.outputs(x, values), values)
        if num_samples < 1:
            raise ConfigError(f"num_samples must be at least 1. Got {num_samples}.")
        model, guide, seed = self.assembly.model, self.assembly.guide, self._prediction_seed
        f, noise = row_outputs(model, guide, self._rows(x), num_samples, seed=seed)
        return self.predictive(f, {} if noise is None else {"noise": noise})

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities, shape ``(rows, classes)``."""
        probabilities = self.predict(X).probabilities
        if probabilities is None:
            raise ConfigError(f"a fit for {self.schema.task} has no class probabilities.")
        return probabilities

    def score(self, X: Any, y: Any) -> dict[str, float]:
        """Return accuracy or RMSE, NLL and calibration scores on raw rows."""
        x, targets = self._encode(X), self.schema.encode_target(y)
        if len(x) != len(targets):
            raise DataError(f"X has {len(x)} rows and y has {len(targets)}; they must agree.")
        return self.posterior_scores(x, targets)

    def _encode(self, X: Any) -> Array:
        if isinstance(X, pd.DataFrame):
            return self.schema.encode(X)
        return self.schema.encode_array(X)

    def _rows(self, x: Array) -> Tensor:
        return torch.as_tensor(x, dtype=DTYPES[self.config.dtype], device=self.config.device)

    def outputs(self, x: Array, slots: Mapping[str, Tensor]) -> Tensor:
        """Return the network's outputs at encoded rows, shape ``(draws, rows, outputs)``."""
        return network_outputs(self.assembly.model, slots, self._rows(x), mode=self.config.compile)

    def predictive(self, f: Tensor, values: Mapping[str, Tensor]) -> Prediction:
        """Return the prediction for outputs and the noise of the same draws."""
        return predictive(
            self.assembly.model,
            f,
            values.get("noise"),
            seed=self._prediction_seed,
            location=self.schema.target_mean,
            scale=self.schema.target_scale,
            classes=self.schema.classes,
        )

    def log_likelihood(self, f: Tensor, y: Array, slots: Mapping[str, Tensor]) -> Tensor:
        """Return log p(y | x, w) of encoded targets, shape ``(draws, rows)``."""
        targets = target_tensor(self.assembly, y)
        return log_likelihood(self.assembly.model, f, slots.get("noise"), targets)

    def output_scores(self, f: Tensor, y: Array, slots: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the scores of outputs, shape ``(draws, rows, outputs)``, on encoded targets."""
        prediction = self.predictive(f, slots)
        density = log_predictive_density(self.log_likelihood(f, y, slots)).mean()
        # A density in standardised units is larger by the scale than one in the units of y.
        nll = -float(density) + float(np.log(self.schema.target_scale))
        if prediction.probabilities is not None:
            return {
                "accuracy": accuracy(prediction.probabilities, y),
                "nll": nll,
                "ece": expected_calibration_error(prediction.probabilities, y),
                "brier": brier(prediction.probabilities, y),
            }
        observed = self.observed(y)
        scores = {"rmse": rmse(prediction.mean, observed), "nll": nll}
        if len(f) > 1:  # one draw has no spread
            scores["crps"] = crps(prediction.samples, observed)
        return scores

    def posterior_scores(
        self, x: Array, y: Array, slots: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Return the scores of the posterior draws, or of other values, on encoded rows."""
        slots = self.draws.values if slots is None else slots
        return self.output_scores(self.outputs(x, slots), y, slots)

    # ------------------------------------------------------------------ what the fit found

    def summary(self) -> pd.DataFrame:
        """Summarise the posterior of every site: range of means and of standard deviations."""
        rows = {
            name: {
                "size": draws[0].numel(),
                "mean": float(draws.mean()),
                "mean of |mean|": float(draws.mean(0).abs().mean()),
                "smallest sd": float(draws.std(0).min()),
                "median sd": float(draws.std(0).median()),
                "largest sd": float(draws.std(0).max()),
            }
            for name, draws in (self.draws.slots | self.draws.sites).items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def groups(self, dataset: Dataset) -> GroupView:
        """Return the groups of weights to prune; the loss is checked on training rows."""
        model, guide = self.assembly.model, self.assembly.guide
        slots = self.draws.first(PRUNING_DRAWS).values
        x, y = dataset.X_train[:PRUNING_ROWS], dataset.y_train[:PRUNING_ROWS]

        def density(view: GroupView | None) -> float:
            pruned = slots if view is None else view.prune(slots)
            f = self.outputs(x, pruned)
            return float(log_predictive_density(self.log_likelihood(f, y, pruned)).mean())

        return group_view(model, guide, self._rows(x), score=density)

    def quantize(self) -> nn.Module:
        """Return the network with its weights replaced by code words.

        Slots without a codebook have the centre of their posterior.
        """
        view = quantized_view(self.assembly.model, self.assembly.guide)
        if view is None:
            raise ConfigError(
                "no weight of this fit has a codebook. Fit the method 'quantized', or give a prior "
                "like '*.weight=Quantized([-0.2, 0, 0.2], size=fitted)'."
            )
        return view.network(self.assembly.model.net)

    def _quantized_metrics(self, dataset: Dataset) -> dict[str, float]:
        """Score the network of posterior centres, and the quantized one, on the test rows."""
        model = self.assembly.model
        view = quantized_view(model, self.assembly.guide)
        if view is None:
            return {}
        metrics = {"nonzero_percent": view.nonzero_percent, "bits_per_weight": view.bits}
        for part, values in (("test.mean", view.means), ("test.quantized", view.values)):
            if len(dataset.X_test):
                slots = {name: value.unsqueeze(0) for name, value in values.items()}
                slots |= statistics_of_draws(model, slots, self._rows(dataset.X_train))
                scores = self.posterior_scores(dataset.X_test, dataset.y_test, slots)
                metrics |= {f"{part}.{name}": score for name, score in scores.items()}
        return metrics

    def metrics(self, dataset: Dataset, groups: GroupView) -> dict[str, float]:
        """Return the numbers of ``metrics.json``."""
        model, guide = self.assembly.model, self.assembly.guide
        metrics: dict[str, float] = {}
        slots = {"train": self.draws.values, "test": self.draws.values}
        if groups.weights_left_percent < 100:
            slots["test.pruned"] = groups.prune(self.draws.values)
        for part, values in slots.items():
            test = dataset.X_test, dataset.y_test
            x, y = self.kept_rows(dataset) if part == "train" else test
            if len(x):
                scores = self.posterior_scores(x, y, values)
                metrics |= {f"{part}.{name}": score for name, score in scores.items()}
        metrics |= self._quantized_metrics(dataset) | guide.metrics()
        elbo, elbo_error = self.elbo(dataset)
        return metrics | {
            "elbo": elbo,
            "elbo_error": elbo_error,
            "kl": total_divergence(model, guide, num_samples=16),
            "weights_left_percent": groups.weights_left_percent,
            "steps": len(self.losses),
            "seconds": self.seconds,
        }

    def elbo(self, dataset: Dataset) -> tuple[float, float]:
        """Return an unbiased estimate of the ELBO in nats, and its standard error."""
        model, guide = self.assembly.model, self.assembly.guide
        local = self.config.estimator == "local" and not model.has_random_convolutions
        rows = training_tensors(self.assembly, dataset)
        return elbo_and_error(model, guide, *rows, local=local)

    def observed(self, y: Array) -> Array:
        """Return encoded targets in the units of the data; classes stay indices."""
        if self.schema.task == "classification":
            return y
        decoded: Array = self.schema.decode_target(y)
        return decoded

    def kept_rows(self, dataset: Dataset) -> tuple[Array, Array]:
        """Return the training rows that are scored one by one, evenly spaced if not all."""
        number = min(len(dataset.X_train), max(1, MAX_TREE_ENTRIES // len(self.draws)))
        if number == len(dataset.X_train):
            return dataset.X_train, dataset.y_train
        rows = np.linspace(0, len(dataset.X_train) - 1, number).round().astype(int)
        return dataset.X_train[rows], dataset.y_train[rows]

    @property
    def loss_is_elbo(self) -> bool:
        """Whether the last losses estimate the negative ELBO of the final guide.

        They do not after early stopping, which restores an earlier guide, or if layers normalise
        batches in training differently from posterior draws.
        """
        model = self.assembly.model
        kept_the_last = not self.config.validation_fraction
        return model.method.loss_is_elbo(model) and kept_the_last and not tracked_layers(model.net)

    def elbo_gains(self, dataset: Dataset) -> dict[str, Array]:
        """Return the change of the ELBO under moves of the posterior; empty if it is not known.

        Posteriors that were computed instead of trained, or that are bounded, are left out.
        """
        held = len(self.losses) == 0 or self.assembly.model.is_bounded
        if held or not self.loss_is_elbo:
            return {}
        found = elbo_gains(
            self.assembly.model,
            self.assembly.guide,
            self.draws,
            *training_tensors(self.assembly, dataset),
            mode=self.config.compile,
        )
        if found is None:
            return {}
        return {
            "move": np.array(MOVES),
            "factor": np.array(FACTORS),
            "elbo_gain": found[0],
            "elbo_gain_error": found[1],
        }

    def data(self, dataset: Dataset | None = None) -> Dataset:
        """Return the data of the fit, or those given for one that was loaded."""
        dataset = dataset or self.dataset
        if dataset is None:
            raise ConfigError("this fit was loaded without its data: pass dataset=.")
        return dataset


def training_tensors(assembly: Assembly, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return the training rows in the precision of a run, on its device if they fit."""
    x = torch.as_tensor(dataset.X_train, dtype=DTYPES[assembly.config.dtype])
    y = target_tensor(assembly, dataset.y_train)
    return (x, y.cpu()) if outgrow(x.nbytes, y.device) else (x.to(y.device), y)


def outgrow(num_bytes: int, device: torch.device) -> bool:
    """Tell whether rows would take more than half of the free memory of a device."""
    return device.type == "cuda" and 2 * num_bytes > torch.cuda.mem_get_info(device)[0]


def target_tensor(assembly: Assembly, y: Array) -> Tensor:
    """Return encoded targets in the type that the likelihood observes."""
    config, is_binary = assembly.config, isinstance(assembly.model.likelihood, Bernoulli)
    is_index = np.issubdtype(y.dtype, np.integer) and not is_binary
    dtype = torch.int64 if is_index else DTYPES[config.dtype]
    return torch.as_tensor(y, dtype=dtype, device=config.device)
