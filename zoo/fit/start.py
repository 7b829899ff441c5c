"""Outputs of a guide at fixed rows, to see how far training has moved it."""

import torch
from torch import Tensor

from zoo.data import Dataset
from zoo.fit.build import DTYPES, PREDICT_STREAM, Assembly
from zoo.fit.comparable import functions_of
from zoo.infer.normalisation import STATISTICS_ROWS, statistics_of_draws
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.svi.schedule import child_seed

#: Draws of the guide.
START_DRAWS = 32


def guide_functions(assembly: Assembly, dataset: Dataset) -> Tensor | None:
    """Return identified functions of draws of the guide, or None if it cannot be drawn from yet.

    The random numbers are always the same, so a guide that did not move gives the same result.
    """
    model, config = assembly.model, assembly.config
    seed = child_seed(config.seed, PREDICT_STREAM)
    try:
        draws = draw_posterior(model, assembly.guide, START_DRAWS, seed=seed)
        x = torch.as_tensor(dataset.X_train[:STATISTICS_ROWS], dtype=DTYPES[config.dtype])
        statistics = statistics_of_draws(model, draws.slots, x.to(config.device))
        return functions_of(model, draws.slots | statistics, dataset, mode="off")[0]
    except (NotImplementedError, RuntimeError):
        return None
