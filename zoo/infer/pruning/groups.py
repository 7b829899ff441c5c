"""The compression view: groups of weights pruned according to the posterior."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guides.base import Composite, Guide
from zoo.network.bnn import BNN

#: Largest loss of training log density per row by pruning; beyond it thresholds are relaxed.
TOLERATED_LOSS = 0.02
#: Number of steps in which a threshold is relaxed until nothing is pruned.
RELAXATIONS = 12
#: Random rows used to detect live weights.
PROBES = 256
#: Scale of the random biases used there.
SMALL_BIAS = 0.01
#: Largest number of groups of a slot listed individually; of more, evenly spaced sorted scores.
MAX_LISTED = 2000


@runtime_checkable
class PrunableGuide(Protocol):
    """A guide that scores groups of weights.

    ``default_threshold`` is the published threshold of a method. Without it the scores are split
    into two clusters.
    """

    group_shape: torch.Size

    def group_scores(self) -> Tensor:
        """Score of each group; larger scores mean more noise."""


@dataclass(frozen=True)
class SlotGroups:
    """The scores of the groups of one slot; groups with scores above the threshold are pruned.

    ``group_shape`` is the shape of one number per group, broadcastable with the weights.
    """

    scores: NDArray[np.floating]
    threshold: float
    group_shape: torch.Size

    @property
    def keep(self) -> NDArray[np.bool_]:
        """Whether each group is kept. The best group is always kept."""
        keep: NDArray[np.bool_] = self.scores <= max(self.threshold, self.scores.min())
        return keep


@dataclass(frozen=True)
class GroupView:
    """The pruned groups of every slot.

    Attributes
    ----------
    groups
        The slots with scores of groups.
    num_weights
        Number of weights of the network: parameters with two or more dimensions, so without biases.
    weights_left
        Number of weights that can still influence the output. Incoming weights of unused units do
        not count.
    relaxed
        Number of times thresholds were relaxed because pruning was too costly on training rows.
    """

    groups: Mapping[str, SlotGroups]
    num_weights: int
    weights_left: int
    relaxed: int = 0

    @property
    def weights_left_percent(self) -> float:
        """Percentage of weights left; 100 if no slot has groups."""
        return 100.0 * self.weights_left / self.num_weights if self.groups else 100.0

    def prune(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Set pruned groups of posterior draws to zero."""
        return masked(slots, self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return the view as plain types."""
        return {
            "weights_left_percent": self.weights_left_percent,
            "relaxed": self.relaxed,
            "relaxations": RELAXATIONS,
            "slots": {
                name: {
                    "groups": len(group.scores),
                    "kept": int(group.keep.sum()),
                    "threshold": group.threshold,
                    **_listed(group),
                }
                for name, group in self.groups.items()
            },
        }


def _listed(group: SlotGroups) -> dict[str, list[Any]]:
    """Return scores and pruned groups; for very many groups, such as weights, only a summary."""
    scores, listed = group.scores, {}
    if len(scores) > MAX_LISTED:
        scores = np.sort(scores)[np.linspace(0, len(scores) - 1, MAX_LISTED).astype(int)]
    else:
        listed["pruned"] = np.flatnonzero(~group.keep).tolist()
    return {"scores": [float(f"{score:.6g}") for score in scores], **listed}


def group_view(
    model: BNN,
    guide: Guide,
    x: Tensor,
    *,
    score: Callable[[GroupView | None], float] | None = None,
) -> GroupView:
    """Split the groups of every slot into signal and noise.

    Only the shape of the rows ``x`` matters. ``score`` returns the training log density per row for
    a view (None: nothing pruned). If given, thresholds that cost more than `TOLERATED_LOSS` are
    relaxed step by step: even a clear split of the scores can prune groups that the network needs.
    """
    parts = prunable_parts(guide)
    scores = {name: part.group_scores().detach().cpu().numpy() for name, part in parts.items()}
    thresholds = {name: method_threshold(parts[name], values) for name, values in scores.items()}
    unpruned = score(None) if score and scores else 0.0
    for relaxed in range(RELAXATIONS + 1):
        groups = {
            name: SlotGroups(
                values,
                _relax(thresholds[name], values.max(), relaxed / RELAXATIONS),
                parts[name].group_shape,
            )
            for name, values in scores.items()
        }
        view = GroupView(groups, *count_weights(model, groups, x), relaxed)
        if score is None or not scores or score(view) >= unpruned - TOLERATED_LOSS:
            break
    return view


def guide_parts(guide: Guide) -> dict[str, Guide]:
    """Return the guide of every slot; empty if one guide covers all slots jointly."""
    return guide.by_name() if isinstance(guide, Composite) else {}


def prunable_parts(guide: Guide) -> dict[str, PrunableGuide]:
    """Return the guides of the slots with scores of groups."""
    return {n: part for n, part in guide_parts(guide).items() if isinstance(part, PrunableGuide)}


def method_threshold(part: PrunableGuide, scores: NDArray[np.floating]) -> float:
    """Return the threshold of a method, or one that splits the scores into two clusters."""
    published: float | None = getattr(part, "default_threshold", None)
    return otsu_threshold(scores) if published is None else published


def otsu_threshold(scores: NDArray[np.floating]) -> float:
    """Return the threshold that splits scores into the two most compact clusters.

    Among all splits of the sorted scores it minimises the variance within the two sides (Otsu,
    1979); the threshold lies in the middle of the gap. Unlike the largest gap, this is robust to a
    single outlier.
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    if len(ordered) < 2 or ordered[0] == ordered[-1]:
        return float("inf")
    count = np.arange(1, len(ordered))
    total, cumulative = ordered.sum(), ordered.cumsum()[:-1]
    low, high = cumulative / count, (total - cumulative) / (len(ordered) - count)
    between = count * (len(ordered) - count) * (high - low) ** 2
    best = int(between.argmax())
    return float((ordered[best] + ordered[best + 1]) / 2)


def _relax(threshold: float, highest: float, share: float) -> float:
    """Move a threshold towards the highest score, above which nothing is pruned."""
    return float(threshold + share * (highest - threshold)) if np.isfinite(threshold) else threshold


def count_weights(model: BNN, groups: Mapping[str, SlotGroups], x: Tensor) -> tuple[int, int]:
    """Count the weights of the network, and those that can still influence its output.

    A weight is dead if the output does not depend on it for any inputs and other weights. This is
    tested with random values: with pruned groups set to zero, the gradient is exactly zero for a
    dead weight and nonzero for a live one. The test works for any architecture.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
        return drawn.to(like)

    def weight(name: str) -> Tensor:
        """Draw a weight such that the kept part of a layer preserves the scale of its inputs."""
        drawn = noise(model.net.get_parameter(name))
        share = groups[name].keep.mean() if name in groups else 1.0
        return drawn * float((2 / (drawn[0].numel() * share)) ** 0.5)

    model.eval()
    named = dict(model.net.named_parameters())
    weights = {n: weight(n).requires_grad_() for n, p in named.items() if p.dim() >= 2}
    vectors = {
        n: noise(s.value)
        for n, s in model.slots.items()
        if s.value.dim() == 1 and not s.positive  # as variances are
    }
    # A bias larger than the inputs of its unit would saturate an activation such as ReLU.
    biases = {n: SMALL_BIAS * noise(p) for n, p in named.items() if n.endswith("bias")}
    rows = torch.randn((PROBES, *x.shape[1:]), generator=generator, dtype=torch.float64).to(x)
    with torch.enable_grad():
        f = model.evaluate(masked({**vectors, **biases, **weights}, groups), rows)
        gradients = torch.autograd.grad((f * noise(f)).sum(), list(weights.values()))
    return (
        sum(weight.numel() for weight in weights.values()),
        sum(int(gradient.count_nonzero()) for gradient in gradients),
    )


def masked(values: Mapping[str, Tensor], groups: Mapping[str, SlotGroups]) -> dict[str, Tensor]:
    """Set pruned groups of values to zero; leading dimensions are draws."""
    result = dict(values)
    for name, group in groups.items():
        if name not in values:  # not needed
            continue
        pruned = torch.as_tensor(~group.keep, device=values[name].device)
        result[name] = values[name].masked_fill(pruned.reshape(group.group_shape), 0.0)
    return result
