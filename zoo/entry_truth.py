r"""The truth of a method: NUTS on its small problem, and the closed form where there is one.

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
import xarray
from numpy.typing import NDArray
from torch import nn

from zoo import workflow
from zoo.bnn import BNN
from zoo.config import make_config
from zoo.fit_truth import truth_of
from zoo.fitted import Fit
from zoo.ground_truth import Truth
from zoo.registry import get

Array = NDArray[Any]

#: Monte Carlo standard errors by which draws may differ from a closed form.
MAX_Z = 5.0


@dataclass(frozen=True)
class EntryTruth:
    """A truth, and what it was held against.

    Attributes
    ----------
    truth
        The draws and their judgement.
    table
        Mean, sd, Monte Carlo errors, R-hat and ESS of every reported number.
    exact_z
        Largest difference of means and sds from the closed form, in Monte Carlo standard errors;
        None if there is no closed form.
    """

    truth: Truth
    table: pd.DataFrame
    exact_z: float | None

    @property
    def is_right(self) -> bool:
        """Whether it is accepted and agrees with the closed form."""
        return self.truth.accepted and (self.exact_z is None or self.exact_z <= MAX_Z)


def entry_truth(method: str, given: Mapping[str, Any], **options: Any) -> EntryTruth:
    """Sample a method on its small problem, or on another one.

    Parameters
    ----------
    method
        A method of the zoo.
    given
        Values of the configuration that replace those of the small problem.
    **options
        As for `zoo.truth`.
    """
    entry = get(method)
    values: dict[str, Any] = {} if "data" in given else dict(entry.small_problem)
    prepared = workflow.prepare(make_config(method=method, **(values | dict(given))))
    untrained = Fit(
        prepared.assembly,
        prepared.dataset.schema,
        torch.zeros(0),
        0.0,
        dataset=prepared.dataset,
    )
    found, _ = truth_of(untrained, prepared.dataset, accept=False, **options)
    x, y = prepared.dataset.X_train, prepared.dataset.y_train
    exact = exact_posterior(prepared.assembly.model, x, y)
    return EntryTruth(found, _table(found.summary), _largest_z(found, exact) if exact else None)


def exact_posterior(model: BNN, x: Array, y: Array) -> dict[str, tuple[Array, Array]] | None:
    """Return mean and sd of weight and bias in closed form; None if the model has none."""
    noise = getattr(model.likelihood, "fixed_noise", None)
    layers = [m for m in model.net.modules() if isinstance(m, nn.Linear)]
    num_parameters = sum(1 for _ in model.net.parameters())
    if noise is None or len(layers) != 1 or num_parameters != len(model.slots):
        return None
    moments: dict[str, tuple[float, float]] = {}
    for name in model.slots:
        prior = model.priors[name]
        loc, scale = prior.arguments.get("loc", 0.0), prior.arguments.get("scale", 1.0)
        if prior.name != "Normal":
            return None
        if not isinstance(loc, int | float) or not isinstance(scale, int | float):
            return None
        moments[name] = (loc, scale)
    sigma = float(noise)
    columns, location, precision, sizes = [], [], [], {}
    for name, (loc, scale) in moments.items():
        size = model.slots[name].value.numel()
        columns.append(x if name.endswith("weight") else np.ones((len(x), 1)))
        location += [loc] * size
        precision += [scale**-2] * size
        sizes[name] = size
    if sum(c.shape[1] for c in columns) != len(location):  # several outputs
        return None
    design = np.concatenate(columns, axis=1).astype(float)
    a = design.T @ design / sigma**2 + np.diag(precision)
    mean = np.linalg.solve(a, design.T @ y / sigma**2 + np.array(precision) * np.array(location))
    sd = np.sqrt(np.diag(np.linalg.inv(a)))
    ends = np.cumsum(list(sizes.values()))[:-1]
    parts = zip(sizes, np.split(mean, ends), np.split(sd, ends), strict=True)
    return {name: (m, s) for name, m, s in parts}


def _largest_z(found: Truth, exact: Mapping[str, tuple[Array, Array]]) -> float:
    worst = 0.0
    for name, (mean, sd) in exact.items():
        summary = found.summary[name]
        for statistic, value in (("mean", mean), ("sd", sd)):
            got = summary.sel(statistic=statistic).to_numpy().ravel()
            error = summary.sel(statistic=f"mcse_{statistic}").to_numpy().ravel()
            worst = max(worst, float(np.max(np.abs(got - value) / error)))
    return worst


def _table(summary: xarray.Dataset) -> pd.DataFrame:
    """Return one row per number: identified parameters, and the functions in one line each."""
    statistics = [str(s) for s in summary["statistic"].to_numpy()]
    rows = {}
    for name, array in summary.data_vars.items():
        flat = array.to_numpy().reshape(len(statistics), -1)
        shape = array.shape[1:]
        for index in range(flat.shape[1]):
            place = ", ".join(map(str, np.unravel_index(index, shape))) if shape else ""
            rows[f"{name}[{place}]" if place else str(name)] = flat[:, index]
    return pd.DataFrame.from_dict(rows, orient="index", columns=statistics)
