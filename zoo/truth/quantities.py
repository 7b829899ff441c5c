"""The identified quantities of a network's model, for true values and posterior draws."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from zoo.fit.tree import identified_slots
from zoo.infer.predict.draws import log_likelihood
from zoo.likelihoods import Categorical
from zoo.network.bnn import BNN

#: By quantity, the true value and the posterior draws.
Quantities = dict[str, tuple[Tensor, Tensor]]

#: Rows at which outputs are ranked, and largest number of ranked parameters.
NUM_POINTS = 5
MAX_PARAMETERS = 100


@dataclass(frozen=True)
class Simulated:
    """A simulated data set: the true values of slots or sites, the data, the true outputs."""

    values: dict[str, Tensor]
    data: Any
    outputs: Tensor | None = None


def quantities(
    model: BNN, simulated: Simulated, values: Mapping[str, Tensor], f: Tensor, y: Tensor
) -> Quantities:
    """Return the identified quantities: parameters of linear models, outputs, noise, likelihood.

    Classes have differences of logits, because a common shift of all logits changes nothing.
    ``f`` and ``y`` are posterior outputs and targets of the first rows. The likelihood is that of
    the fitted model, so that a noise without a prior is the same for true values and draws.
    """
    assert simulated.outputs is not None
    true = {name: value.to(f)[None] for name, value in simulated.values.items()}
    true_f = simulated.outputs[: len(y)].to(f)[None]
    by_class = isinstance(model.likelihood, Categorical)
    found: Quantities = {}
    for name in ranked_slots(model):
        pair = true[name], values[name].to(f)
        found |= _elements(name, *(_differences(v, 1) if by_class else v for v in pair))
    found = at_most(MAX_PARAMETERS, found)
    if "noise" in values:
        found["noise"] = true["noise"].reshape(-1)[0], values["noise"].to(f).flatten()
    rows = np.unique(np.linspace(0, len(y) - 1, NUM_POINTS).astype(int))
    outputs = [_differences(part, -1) if by_class else part for part in (true_f, f)]
    for row in rows:
        elements = _elements(f"output[{row}]", *(part[:, row] for part in outputs))
        found |= elements if len(elements) > 1 else {f"output[{row}]": elements.popitem()[1]}
    likelihoods = (
        log_likelihood(model, true_f, true.get("noise"), y).sum(1)[0],
        log_likelihood(model, f, noise_of(values), y).sum(1),
    )
    return found | {"log_likelihood": likelihoods}


def ranked_slots(model: BNN) -> list[str]:
    """Return the slots whose elements are identified, without the noise."""
    return [n for n in identified_slots(model.net, list(model.slots)) if n != "noise"]


def at_most(number: int, found: Quantities) -> Quantities:
    """Return not more than a number of quantities, spread over all of them."""
    names = list(found)[:: max(1, -(-len(found) // number))]
    return {name: found[name] for name in names}


def noise_of(values: Mapping[str, Tensor]) -> Tensor | None:
    """Return draws of the noise of the likelihood, if it has a prior."""
    return values["noise"].flatten() if "noise" in values else None


def _differences(value: Tensor, dim: int) -> Tensor:
    """Subtract the first class from the others."""
    size = value.shape[dim]
    return value.narrow(dim, 1, size - 1) - value.narrow(dim, 0, 1)


def _elements(name: str, true: Tensor, draws: Tensor) -> Quantities:
    """Return one quantity for each element."""
    return {
        f"{name}[{index}]": (true.flatten()[index], column)
        for index, column in enumerate(draws.flatten(1).T)
    }
