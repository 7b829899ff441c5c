"""The compression view: which groups of weights a posterior has switched off."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guides.base import Composite
from zoo.bnn import BNN
from zoo.compress.threshold import otsu_threshold

#: How much of the training log density per row pruning may cost before it is taken back.
TOLERATED_LOSS = 0.02
#: Number of steps in which a threshold that costs too much is relaxed to "prune nothing".
RELAXATIONS = 12


@runtime_checkable
class PrunableGuide(Protocol):
    """A guide that scores groups of weights."""

    group_shape: torch.Size

    def group_scores(self) -> Tensor:
        """Score of each group: the larger, the more it is noise."""


@dataclass(frozen=True)
class SlotGroups:
    """The groups of one slot.

    Attributes
    ----------
    scores
        Score of each group, the larger the more it is noise.
    threshold
        Groups with larger scores are pruned.
    group_shape
        Shape of one number per group, broadcastable against the weights.
    num_weights
        Number of weights of the slot.
    """

    scores: NDArray[np.floating]
    threshold: float
    group_shape: torch.Size
    num_weights: int

    @property
    def keep(self) -> NDArray[np.bool_]:
        """Whether each group is kept. The best group always is."""
        return (self.scores <= self.threshold) | (self.scores == self.scores.min())

    @property
    def weights_left(self) -> int:
        """Number of weights in the groups that are kept."""
        return int(self.keep.sum()) * (self.num_weights // len(self.scores))


@dataclass(frozen=True)
class GroupView:
    """Which groups are pruned, slot by slot.

    Attributes
    ----------
    groups
        The slots whose posterior scores groups.
    num_weights
        Number of weights of the network: parameters with two or more dimensions, so without biases.
    relaxed
        How often the thresholds were relaxed because pruning cost too much on the training rows.
    """

    groups: Mapping[str, SlotGroups]
    num_weights: int
    relaxed: int = 0

    @property
    def weights_left_percent(self) -> float:
        """Percentage of weights outside pruned groups; 100 if nothing has groups."""
        pruned = sum(group.num_weights - group.weights_left for group in self.groups.values())
        return 100.0 * (1.0 - pruned / self.num_weights) if self.num_weights else 100.0

    def prune(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Set pruned groups of posterior draws to zero."""
        pruned = dict(slots)
        for name, group in self.groups.items():
            mask = torch.as_tensor(group.keep, device=slots[name].device)
            pruned[name] = slots[name] * mask.reshape(group.group_shape)
        return pruned

    def to_dict(self) -> dict[str, Any]:
        """Return the view as plain types."""
        return {
            "weights_left_percent": self.weights_left_percent,
            "relaxed": self.relaxed,
            "slots": {
                name: {
                    "groups": len(group.scores),
                    "kept": int(group.keep.sum()),
                    "threshold": group.threshold,
                    "pruned": np.flatnonzero(~group.keep).tolist(),
                }
                for name, group in self.groups.items()
            },
        }


@torch.no_grad()
def group_view(
    model: BNN, guide: Composite, *, score: Callable[[GroupView | None], float] | None = None
) -> GroupView:
    """Split the groups of every slot into signal and noise.

    Parameters
    ----------
    model, guide
        A fitted model.
    score
        Returns the training log density per row under a view (None: nothing pruned). If given,
        thresholds that cost more than `TOLERATED_LOSS` are relaxed step by step: a split that looks
        clean in the scores can still remove what the network needs.
    """
    scores = {
        name: part.group_scores().cpu().numpy()
        for name in model.slots
        if isinstance(part := guide[name], PrunableGuide)
    }
    thresholds = {name: otsu_threshold(values) for name, values in scores.items()}
    unpruned = score(None) if score and scores else 0.0
    for relaxed in range(RELAXATIONS + 1):
        share = relaxed / RELAXATIONS
        groups = {
            name: SlotGroups(
                values,
                float((1 - share) * thresholds[name] + share * values.max())
                if np.isfinite(thresholds[name])
                else thresholds[name],
                guide[name].group_shape,  # type: ignore[arg-type]
                model.slots[name].shape.numel(),
            )
            for name, values in scores.items()
        }
        view = GroupView(groups, _count_weights(model), relaxed)
        if score is None or not scores or score(view) >= unpruned - TOLERATED_LOSS:
            break
    return view


def _count_weights(model: BNN) -> int:
    return sum(p.numel() for p in model.net.parameters() if p.dim() >= 2)
