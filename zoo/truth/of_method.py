r"""The truth of a method: NUTS on its small problem, and the closed form if there is one.

For a linear model with Gaussian priors :math:`N(m, s^2)` and known noise :math:`\sigma` the
posterior is Gaussian with precision :math:`A = \Phi^\top \Phi / \sigma^2 + S^{-1}` and mean
:math:`A^{-1} (\Phi^\top y / \sigma^2 + S^{-1} m)`, with :math:`\Phi` the inputs and a column of
ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.fit.config import make_config
from zoo.fit.prepare import Prepared, prepare
from zoo.fit.result import Fitted
from zoo.fit.run import begin, train
from zoo.network.bnn import BNN
from zoo.network.slots import Slot
from zoo.registry import get
from zoo.truth.criteria import summary_table
from zoo.truth.of_fit import truth_of
from zoo.truth.reference import Truth

Array = NDArray[Any]

#: Tolerated difference from a closed form, in Monte Carlo standard errors.
MAX_Z = 5.0


@dataclass(frozen=True)
class EntryTruth:
    """A truth, a table of the statistics of every reported number, and the error of the truth.

    ``exact_z`` is the largest difference of means and sds from the closed form, in Monte Carlo
    standard errors; None if there is no closed form.
    """

    truth: Truth
    table: pd.DataFrame
    exact_z: float | None

    @property
    def is_right(self) -> bool:
        """Whether the truth is accepted and agrees with the closed form."""
        return self.truth.accepted and (self.exact_z is None or self.exact_z <= MAX_Z)


def entry_truth(method: str, given: Mapping[str, Any], **options: Any) -> EntryTruth:
    """Sample the model of a method on its small problem, or on the data given.

    Configuration values that are `given` override those of the small problem; options are those of
    `zoo.truth`.
    """
    entry = get(method)
    values: dict[str, Any] = {} if "data" in given else dict(entry.small_problem)
    prepared = prepare(make_config(method=method, **(values | dict(given))))
    fitted = _fit_of(prepared, options.get("progress_bar"))
    # A fit that was not trained says nothing about where to start.
    found, _ = truth_of(fitted, prepared.dataset, accept=False, **({"points": ()} | options))
    x, y = prepared.dataset.X_train, prepared.dataset.y_train
    exact = exact_posterior(prepared.assembly.model, x, y)
    return EntryTruth(
        found, summary_table(found.summary), _largest_z(found, exact) if exact else None
    )


def _fit_of(prepared: Prepared, progress_bar: bool | None) -> Fitted:
    """Return a fit with the model; it is trained only if the prior is fitted to the data."""
    if prepared.assembly.model.fitted_priors:
        return train(begin(prepared, None), progress_bar=progress_bar)
    dataset = prepared.dataset
    return Fitted(prepared.assembly, dataset.schema, torch.zeros(0), 0.0, dataset=dataset)


def exact_posterior(model: BNN, x: Array, y: Array) -> dict[str, tuple[Array, Array]] | None:
    """Return mean and sd of weight and bias in closed form, or None if there is none."""
    noise = getattr(model.likelihood, "fixed_noise", None)
    layers = [m for m in model.net.modules() if isinstance(m, nn.Linear)]
    parameters = {name for name, _ in model.net.named_parameters()}
    if noise is None or len(layers) != 1 or parameters != set(model.slots):
        return None
    columns, location, precision, sizes = [], [], [], {}
    for name, slot in model.slots.items():
        normal = model.prior(name).normal()
        if normal is None:
            return None
        sizes[name] = slot.value.numel()
        columns.append(x if name.endswith("weight") else np.ones((len(x), 1)))
        location.append(_flat(normal.loc, slot))
        precision.append(_flat(normal.scale, slot) ** -2)
    if sum(c.shape[1] for c in columns) != sum(sizes.values()):  # several outputs
        return None
    sigma = float(noise)
    loc, weight = np.concatenate(location), np.concatenate(precision)
    design = np.concatenate(columns, axis=1).astype(float)
    a = design.T @ design / sigma**2 + np.diag(weight)
    mean = np.linalg.solve(a, design.T @ y / sigma**2 + weight * loc)
    sd = np.sqrt(np.diag(np.linalg.inv(a)))
    ends = np.cumsum(list(sizes.values()))[:-1]
    parts = zip(sizes, np.split(mean, ends), np.split(sd, ends), strict=True)
    return {name: (m, s) for name, m, s in parts}


def _flat(value: Tensor, slot: Slot) -> Array:
    return value.detach().cpu().double().expand(slot.shape).numpy().ravel()


def _largest_z(found: Truth, exact: Mapping[str, tuple[Array, Array]]) -> float:
    worst = 0.0
    for name, (mean, sd) in exact.items():
        summary = found.summary[name]
        for statistic, value in (("mean", mean), ("sd", sd)):
            got = summary.sel(statistic=statistic).to_numpy().ravel()
            error = summary.sel(statistic=f"mcse_{statistic}").to_numpy().ravel()
            worst = max(worst, float(np.max(np.abs(got - value) / error)))
    return worst
