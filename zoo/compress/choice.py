"""Which groups go: by the method's own rule, by a threshold, or by what pruning may cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from torch import Tensor

from guides.base import Guide
from zoo.errors import CompressionError
from zoo.infer.pruning.groups import (
    GroupView,
    SlotGroups,
    count_weights,
    method_threshold,
    prunable_parts,
)
from zoo.network.bnn import BNN
from zoo.network.slots import assign

#: Halvings of the interval in which a threshold is looked for.
HALVINGS = 10

Thresholds = dict[str, float]
#: What pruning costs: the negative log-likelihood per row with these groups masked.
Cost = Callable[[Mapping[str, SlotGroups]], float]


@dataclass(frozen=True)
class PruningChoice:
    """Which groups are pruned, and by which rule."""

    rule: Literal["default", "threshold", "tolerance"]
    view: GroupView

    def to_dict(self) -> dict[str, Any]:
        """Return the rule and what came of it, as plain types."""
        slots = {
            name: {
                "threshold": group.threshold,
                "groups": len(group.scores),
                "kept": int(group.keep.sum()),
            }
            for name, group in self.view.groups.items()
        }
        return {"rule": self.rule, "relaxed": self.view.relaxed, "slots": slots}


def choose_by_threshold(
    model: BNN, guide: Guide, x: Tensor, threshold: float | Mapping[str, float]
) -> PruningChoice:
    """Prune groups whose score is above a number, the same for all slots or by slot pattern."""
    groups = _Groups(model, guide, x)
    if not isinstance(threshold, Mapping):
        threshold = dict.fromkeys(groups.names, threshold)
    slots = [model.slots[name] for name in groups.names]
    wanted = assign(threshold, slots, what="threshold pattern")
    for name, value in wanted.items():
        if np.isnan(value):
            raise CompressionError(f"the threshold of {name!r} must be a number. Got {value}.")
    return PruningChoice("threshold", groups.view(groups.nothing | wanted))


def choose_by_tolerance(
    model: BNN, guide: Guide, x: Tensor, tolerance: float, cost: Cost
) -> PruningChoice:
    """Prune as much as the tolerance allows.

    First all slots together move from "nothing" through the method's own thresholds to "all but the
    best group", and stop where the cost is reached. Then each slot alone, the largest first, goes
    on as far as it can. Every step halves an interval, and only thresholds that were tried and
    found good enough are used, so the cost of the result is within the tolerance.

    Parameters
    ----------
    model, guide, x
        A fitted model, and a few rows.
    tolerance
        How much the cost may rise, in nats per row.
    cost
        The cost of a view.
    """
    if not tolerance >= 0:
        raise CompressionError(f"the tolerance must be zero or more. Got {tolerance}.")
    groups = _Groups(model, guide, x)
    limit = cost({}) + tolerance

    def is_good(thresholds: Thresholds) -> bool:
        return cost(groups.at(thresholds)) <= limit

    found = _furthest(groups.between, is_good, groups.nothing)
    for name in sorted(groups.names, key=lambda name: -model.slots[name].value.numel()):
        found = _furthest(partial(groups.lowered, found, name), is_good, found)
    return PruningChoice("tolerance", groups.view(found))


def _furthest(
    thresholds: Callable[[float], Thresholds],
    is_good: Callable[[Thresholds], bool],
    start: Thresholds,
) -> Thresholds:
    """Return the thresholds of the largest share, from 0 to 2, that halving finds to be good."""
    low, high, best = 0.0, 2.0, start
    if is_good(thresholds(high)):
        return thresholds(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if is_good(thresholds(middle)):
            low, best = middle, thresholds(middle)
        else:
            high = middle
    return best


class _Groups:
    """The groups of a fit, at given thresholds."""

    def __init__(self, model: BNN, guide: Guide, x: Tensor) -> None:
        self.model, self.x = model, x
        self.parts = prunable_parts(guide)
        if not self.parts:
            raise CompressionError(
                "the posterior does not score groups of weights, so there is no threshold to set."
            )
        self.names = list(self.parts)
        self.scores = {n: p.group_scores().detach().cpu().numpy() for n, p in self.parts.items()}
        finite = {name: scores[np.isfinite(scores)] for name, scores in self.scores.items()}
        self.nothing = {name: float(v.max(initial=-np.inf)) for name, v in finite.items()}
        self.lowest = {name: float(v.min(initial=np.inf)) for name, v in finite.items()}
        for name in self.names:
            if not len(finite[name]):
                raise CompressionError(f"the posterior of {name!r} has no finite score.")

    def at(self, thresholds: Thresholds) -> dict[str, SlotGroups]:
        return {
            name: SlotGroups(self.scores[name], thresholds[name], part.group_shape)
            for name, part in self.parts.items()
        }

    def view(self, thresholds: Thresholds) -> GroupView:
        groups = self.at(thresholds)
        return GroupView(groups, *count_weights(self.model, groups, self.x))

    def between(self, share: float) -> Thresholds:
        """From nothing pruned (0) through the method's thresholds (1) to all but the best (2)."""
        return {name: self._between(name, share) for name in self.names}

    def _between(self, name: str, share: float) -> float:
        own = method_threshold(self.parts[name], self.scores[name])
        middle = float(np.clip(own, self.lowest[name], self.nothing[name]))
        if share <= 1:
            return self.nothing[name] + share * (middle - self.nothing[name])
        return middle + (share - 1) * (self.lowest[name] - middle)

    def lowered(self, start: Thresholds, name: str, share: float) -> Thresholds:
        """From the start (0) to all but the best group of one slot (2)."""
        return start | {name: start[name] + share / 2 * (self.lowest[name] - start[name])}
