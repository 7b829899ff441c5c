"""Choose the groups to prune: by the method's own rule, by a threshold, or by a tolerated cost."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

#: Bisection steps of the search for a threshold.
HALVINGS = 10

Thresholds = dict[str, float]
#: The cost of pruning: the negative log-likelihood per row with these groups masked.
Cost = Callable[[Mapping[str, SlotGroups]], float]


@dataclass(frozen=True)
class PruningChoice:
    """Which groups are pruned, and by which rule."""

    rule: Literal["default", "threshold", "tolerance"]
    view: GroupView

    def to_dict(self) -> dict[str, Any]:
        """Return the rule and the numbers of groups, as plain types."""
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
        threshold = dict.fromkeys(groups.parts, threshold)
    slots = [model.slots[name] for name in groups.parts]
    wanted = assign(threshold, slots, what="threshold pattern")
    for name, value in wanted.items():
        if np.isnan(value):
            raise CompressionError(f"the threshold of {name!r} must be a number. Got {value}.")
    return PruningChoice("threshold", groups.view(groups.nothing | wanted))


def choose_by_tolerance(
    model: BNN, guide: Guide, x: Tensor, tolerance: float, cost: Cost
) -> PruningChoice:
    """Prune as much as possible with a cost that rises by at most the tolerance, in nats per row.

    First the thresholds of all slots move together from "nothing pruned" through the method's own
    thresholds to "all but the best group". Then those of each slot, the largest first, move on
    alone. Both are bisections, and only thresholds whose cost was computed and found acceptable
    are used, so the cost of the result is within the tolerance.
    """
    if not tolerance >= 0:
        raise CompressionError(f"the tolerance must be zero or more. Got {tolerance}.")
    groups = _Groups(model, guide, x)
    limit = cost({}) + tolerance

    def is_good(thresholds: Thresholds) -> bool:
        return cost(groups.at(thresholds)) <= limit

    own = {n: method_threshold(part, groups.scores[n]) for n, part in groups.parts.items()}
    own = {n: float(np.clip(t, groups.lowest[n], groups.nothing[n])) for n, t in own.items()}
    found = _furthest([groups.nothing, own, groups.lowest], is_good)
    for name in sorted(groups.parts, key=lambda name: -model.slots[name].value.numel()):
        found = _furthest([found, found | {name: groups.lowest[name]}], is_good)
    return PruningChoice("tolerance", groups.view(found))


def _furthest(path: list[Thresholds], is_good: Callable[[Thresholds], bool]) -> Thresholds:
    """Return the good thresholds that bisection finds furthest along a path; its start is good."""

    def at(position: float) -> Thresholds:
        k = math.ceil(position) - 1
        return {n: v + (position - k) * (path[k + 1][n] - v) for n, v in path[k].items()}

    low, high, best = 0.0, float(len(path) - 1), path[0]
    if is_good(at(high)):
        return at(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if is_good(at(middle)):
            low, best = middle, at(middle)
        else:
            high = middle
    return best


class _Groups:
    """The groups of a fit, for given thresholds."""

    def __init__(self, model: BNN, guide: Guide, x: Tensor) -> None:
        self.model, self.x = model, x
        self.parts = prunable_parts(guide)
        if not self.parts:
            raise CompressionError(
                "the posterior does not score groups of weights, so there is no threshold to set."
            )
        self.scores = {n: p.group_scores().detach().cpu().numpy() for n, p in self.parts.items()}
        self.nothing: Thresholds = {}
        self.lowest: Thresholds = {}
        for name, scores in self.scores.items():
            finite = scores[np.isfinite(scores)]
            if not len(finite):
                raise CompressionError(f"the posterior of {name!r} has no finite score.")
            self.nothing[name], self.lowest[name] = float(finite.max()), float(finite.min())

    def at(self, thresholds: Thresholds) -> dict[str, SlotGroups]:
        return {
            name: SlotGroups(self.scores[name], thresholds[name], part.group_shape)
            for name, part in self.parts.items()
        }

    def view(self, thresholds: Thresholds) -> GroupView:
        groups = self.at(thresholds)
        return GroupView(groups, *count_weights(self.model, groups, self.x))
