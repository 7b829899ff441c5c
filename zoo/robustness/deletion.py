"""Deletion of weights in order of importance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from guides.base import Guide
from zoo.errors import CompressionError
from zoo.infer.pruning.groups import prunable_parts
from zoo.infer.pruning.moments import slot_moments
from zoo.network.bnn import BNN
from zoo.robustness.attacks import network_values

#: Rankings of weights: by the pruning scores of the method, by the mean of a weight in posterior
#: standard deviations, or by the magnitude of the mean. ``auto`` uses the first available one.
Ranking = Literal["auto", "method", "signal_to_noise", "magnitude"]


@dataclass(frozen=True)
class Deletion:
    """An order of weights: the elements with the largest scores are deleted first."""

    ranking: Ranking
    scores: dict[str, Tensor]

    def delete(
        self, model: BNN, values: Mapping[str, Tensor], fraction: float
    ) -> dict[str, Tensor]:
        """Return draws with a fraction of the ranked elements of all slots set to zero.

        Weights that are points, and so have no draws, are taken from the model.
        """
        if not 0 <= fraction <= 1:
            raise CompressionError(f"the fraction to delete must be in [0, 1]. Got {fraction}.")
        flat = torch.cat([score.flatten() for score in self.scores.values()])
        gone = torch.zeros_like(flat, dtype=torch.bool)
        order = flat.argsort(descending=True, stable=True)
        gone[order[: round(fraction * len(flat))]] = True
        masks = gone.split([score.numel() for score in self.scores.values()])
        changed = {**network_values(model, values), **values}
        deleted = {
            name: changed[name].masked_fill(mask.reshape(score.shape), 0.0)
            for (name, score), mask in zip(self.scores.items(), masks, strict=True)
        }
        return {**values, **deleted}


@torch.no_grad()
def deletion_order(model: BNN, guide: Guide, ranking: Ranking = "auto", *, seed: int) -> Deletion:
    """Rank the weights of a fitted model, or the multipliers that its method prunes instead.

    The seed is that of the draws for moments without a closed form.
    """
    if ranking not in get_args(Ranking):
        known = ", ".join(get_args(Ranking))
        raise CompressionError(f"unknown ranking of weights {ranking!r}. Known: {known}.")
    by_method = {
        name: part.group_scores()
        .reshape(part.group_shape)
        .expand(model.slots[name].shape)
        .to(model.slots[name].value)
        for name, part in prunable_parts(guide).items()
    }
    moments = slot_moments(model, guide, seed=seed)
    matrices = {n: p for n, p in model.net.named_parameters() if p.dim() >= 2}
    by_noise = {
        name: -moments.means[name].abs() / moments.variances[name].sqrt()
        for name in matrices
        if name in moments.variances
    }
    by_size = {n: -moments.means.get(n, p.detach()).abs() for n, p in matrices.items()}
    found: dict[Ranking, dict[str, Tensor]] = {
        "method": by_method,
        "signal_to_noise": by_noise,
        "magnitude": by_size,
    }
    if ranking == "auto":
        ranking = next((name for name, scores in found.items() if scores), "magnitude")
    if not found[ranking]:
        raise CompressionError(
            f"the weights of this fit cannot be ranked by {ranking!r}: no slot has such scores."
        )
    return Deletion(ranking, found[ranking])
