r"""The ELBO of a fit: an unbiased estimate with its standard error.

The number of draws :math:`n = (s / \epsilon)^2` follows from the sd :math:`s` of some first draws,
which are then thrown away. Draws of an ELBO are skewed to the left: samples without an outlier have
a high mean and a small sd. To stop as soon as the error is small would select such samples, and the
estimate would lie above the ELBO, and sometimes above the evidence, by bias.

The error should be `SHARE` of the tolerance for differences of ELBOs, but the work is bounded. Data
with which `MIN_DRAWS` draws are more than `MAX_ENTRIES` pairs of rows and draws are read once, with
few draws for each chunk of rows. Of more than `MAX_ROWS` rows a random sample is read, and the
noise of the rows is part of the error.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guides.base import Guide
from zoo.infer.svi.objective import ELBO_ROWS, elbo_draws
from zoo.infer.svi.tolerance import tolerance_in_nats

#: Error that is aimed at, relative to the tolerance.
SHARE = 0.3
#: Draws that decide how many are needed, and smallest and largest number of draws.
PILOT_DRAWS = 16
MIN_DRAWS, MAX_DRAWS = 8, 200
#: Largest product of draws and rows.
MAX_ENTRIES = 500_000
#: Smallest number of draws for a chunk of rows, and largest number of rows.
MIN_CHUNK_DRAWS = 2
MAX_ROWS = 2_000_000
#: Seeds of the draws that decide their number, of those of the estimate, and of the rows.
PILOT_SEED, SEED, ROW_SEED = 1, 0, 2


def elbo_and_error(
    model: Any,
    guide: Guide,
    *batch: Tensor,
    local: bool = False,
    max_draws: int = MAX_DRAWS,
) -> tuple[float, float]:
    """Return an unbiased estimate of the ELBO of all training rows, and its standard error.

    Parameters
    ----------
    model, guide
        The model and its posterior; neither is changed.
    *batch
        The training rows, which are the arguments of the model; a model may have none.
    local
        Whether layers sample their outputs row by row, which has less noise. The expectation is the
        same for fully connected layers only.
    max_draws
        Largest number of draws.
    """
    rows = len(batch[0]) if batch else 1
    budget = min(MAX_ENTRIES // rows, max_draws)
    if budget < MIN_DRAWS:
        return _of_many_rows(model, guide, batch, local)
    number = budget
    if budget > 2 * PILOT_DRAWS:
        pilot = elbo_draws(
            model, guide, *batch, num_draws=PILOT_DRAWS, local=local, seed=PILOT_SEED
        )
        wanted = _needed(float(pilot.std()), rows)
        number = int(np.clip(wanted, MIN_DRAWS, budget - PILOT_DRAWS))
    draws = elbo_draws(model, guide, *batch, num_draws=number, local=local, seed=SEED)
    return float(draws.mean()), float(draws.std()) / math.sqrt(number)


def _needed(sd: float, rows: int) -> float:
    target = SHARE * tolerance_in_nats(rows)
    return math.ceil((sd / target) ** 2) if math.isfinite(sd) else MIN_DRAWS


def _of_many_rows(
    model: Any, guide: Guide, batch: tuple[Tensor, ...], local: bool
) -> tuple[float, float]:
    """Estimate the ELBO from one pass over chunks of rows, each with few draws of its own.

    Chunks of all rows differ in the rows, so the error comes from the draws within them. If rows
    were left out, chunks are exchangeable, and their spread has the noise of draws and of rows. It
    ignores that rows are drawn without replacement, which makes the error a little too large.
    """
    rows = len(batch[0])
    number = max(MIN_CHUNK_DRAWS, MAX_ENTRIES // rows)
    order = torch.arange(rows)
    if rows > MAX_ROWS:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(ROW_SEED))[:MAX_ROWS]
    means, variances, shares = [], [], []
    for index, chosen in enumerate(order.split(ELBO_ROWS)):
        chunk = (part[chosen.to(part.device)] for part in batch)
        draws = elbo_draws(model, guide, *chunk, num_draws=number, local=local, seed=SEED + index)
        means.append(float(draws.mean()))
        variances.append(float(draws.var()) / number)
        shares.append(len(chosen) / len(order))
    value = float(np.average(means, weights=shares))
    if rows > MAX_ROWS:
        variances = (np.subtract(means, value) ** 2 * len(means) / (len(means) - 1)).tolist()
    return value, math.sqrt(np.dot(np.square(shares), variances))
