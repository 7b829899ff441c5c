"""Scores of a fit over the strength of noise, attacks and deletion."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.errors import ConfigError
from zoo.fit.result import Fitted, target_tensor
from zoo.infer.svi.schedule import child_seed
from zoo.network.slots import structure_slots
from zoo.robustness.attacks import fgsm_direction, noisy_inputs, noisy_parameters, without_edges
from zoo.robustness.deletion import Ranking, deletion_order

#: Largest number of rows and draws.
MAX_ROWS = 1000
MAX_DRAWS = 32
#: Draws of random noise that scores are averaged over.
NUM_REPEATS = 3
#: Stream of random numbers.
STREAM = 5_000_000_029

#: Strengths: standard deviations of noise, steps of FGSM, fractions deleted. Noise and steps on
#: inputs are in the units of the network inputs.
INPUT_NOISE = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
FGSM = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
PARAMETER_NOISE = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5)
DELETION = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)
CUT_EDGES = (0.0, 0.1, 0.2, 0.3, 0.5)
#: Edges are cut only in networks with at least this many mixtures of primitives.
MIN_EDGES = 2
SCORES = ("accuracy", "rmse", "nll")

Array = NDArray[Any]
Scores = dict[str, float]
#: Strengths, seeds over which scores are averaged, and changed arguments of `_Trial.at`.
_Attack = tuple[Sequence[float], Sequence[int], Callable[[float, int], dict[str, Any]]]


def robustness_of(
    fitted: Fitted,
    dataset: Dataset,
    *,
    input_noise: Sequence[float] = INPUT_NOISE,
    fgsm: Sequence[float] = FGSM,
    parameter_noise: Sequence[float] = PARAMETER_NOISE,
    deletion: Sequence[float] = DELETION,
    cut_edges: Sequence[float] = CUT_EDGES,
    ranking: Ranking = "auto",
    clamp: tuple[float, float] | None = None,
    num_draws: int = MAX_DRAWS,
    num_rows: int = MAX_ROWS,
    num_repeats: int = NUM_REPEATS,
) -> xarray.Dataset:
    """Score a fit under attacks of several strengths, on test rows if there are any.

    Parameters
    ----------
    fitted, dataset
        The fit and its data.
    input_noise, parameter_noise
        Standard deviations of Gaussian noise on inputs, and on weights and biases.
    fgsm
        Steps of the fast gradient sign method, see `zoo.robustness.attacks.fgsm_direction`.
    deletion
        Fractions of the weights that are set to zero, or of the multipliers if the method prunes
        these.
    cut_edges
        Fractions of the edges of a graph network that are cut, chosen at random.
    ranking
        The order of deletion, see `zoo.robustness.deletion.Ranking`.
    clamp
        Smallest and largest value of an input, to which attacked rows are clipped; not clipped by
        default.
    num_draws, num_rows
        Largest number of posterior draws and rows. Predictions are averages over the draws,
        and FGSM attacks that average.
    num_repeats
        Number of noise draws over which scores are averaged.

    Returns
    -------
    xarray.Dataset
        For every attack a coordinate with its strengths, and scores such as ``fgsm_accuracy``.
    """
    trial = _Trial(fitted, dataset, clamp, num_draws, num_rows)
    order = deletion_order(trial.model, trial.fitted.assembly.guide, ranking, seed=trial.seed(0))
    seeds = [trial.seed(index) for index in range(1, 1 + num_repeats)]
    direction = trial.fgsm_direction()
    model, values = trial.model, trial.values
    attacks: dict[str, _Attack] = {
        "input_noise": (
            input_noise,
            seeds,
            lambda s, seed: {"x": noisy_inputs(trial.x, s, seed=seed)},
        ),
        "fgsm": (fgsm, [0], lambda s, _: {"x": trial.x + s * direction}),
        "parameter_noise": (
            parameter_noise,
            seeds,
            lambda s, seed: {"values": noisy_parameters(model, values, s, seed=seed)},
        ),
        "deletion": (deletion, [0], lambda s, _: {"values": order.delete(model, values, s)}),
    }
    if len(structure_slots(model.net)) >= MIN_EDGES:
        attacks["cut_edges"] = (
            cut_edges,
            seeds,
            lambda s, seed: {"values": without_edges(model, values, s, seed=seed)},
        )
    curves = xarray.Dataset(attrs=trial.attributes | {"ranking": order.ranking})
    for name, (strengths, repeats, change) in attacks.items():
        levels = _checked(name, strengths)
        found = [_mean([trial.at(**change(s, seed)) for seed in repeats]) for s in levels]
        curves = curves.assign_coords({name: (name, np.array(levels))})
        for score in found[0] if found else ():
            curves[f"{name}_{score}"] = ((name,), np.array([scores[score] for scores in found]))
    return curves


class _Trial:
    """The rows, the draws, and their scores."""

    def __init__(
        self,
        fitted: Fitted,
        dataset: Dataset,
        clamp: tuple[float, float] | None,
        num_draws: int,
        num_rows: int,
    ) -> None:
        self.fitted, self.clamp, self.model = fitted, clamp, fitted.assembly.model
        has_test = len(dataset.X_test) > 0
        rows = (dataset.X_test, dataset.y_test) if has_test else (dataset.X_train, dataset.y_train)
        inputs, self.y = (part[:num_rows] for part in rows)
        self.x = torch.as_tensor(
            inputs, dtype=fitted.assembly.guide.some_tensor.dtype, device=fitted.config.device
        )
        self.values = fitted.draws.first(num_draws).values
        self.attributes = {
            "rows": len(self.y),
            "draws": min(num_draws, len(fitted.draws)),
            "held_out": int(has_test),
            "clamp": "" if clamp is None else f"{clamp[0]:g} to {clamp[1]:g}",
        }

    def seed(self, index: int) -> int:
        return child_seed(self.fitted.config.seed, STREAM + index)

    def fgsm_direction(self) -> Tensor:
        targets = target_tensor(self.fitted.assembly, self.y)
        return fgsm_direction(self.model, self.values, self.x, targets)

    def at(self, x: Tensor | None = None, values: dict[str, Tensor] | None = None) -> Scores:
        """Return the scores of changed rows, or of changed draws."""
        rows = self.x if x is None else x
        if self.clamp is not None:
            rows = rows.clamp(*self.clamp)
        values = self.values if values is None else values
        f = self.fitted.outputs(rows.cpu().numpy(), values)
        scores = self.fitted.output_scores(f, self.y, values)
        return {name: scores[name] for name in SCORES if name in scores}


def _checked(attack: str, strengths: Sequence[float]) -> list[float]:
    levels = [float(level) for level in strengths]
    if any(not level >= 0 for level in levels) or levels != sorted(set(levels)):
        raise ConfigError(
            f"the strengths of {attack!r} must be increasing numbers from zero. Got {levels}."
        )
    return levels


def _mean(scores: list[Scores]) -> Scores:
    return {name: float(np.mean([row[name] for row in scores])) for name in scores[0]}
