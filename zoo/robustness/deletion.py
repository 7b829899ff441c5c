"""Weights in the order in which they can go: deleted share by share, to see what is lost."""

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

#: How weights are ranked: by the scores that the method prunes groups by; by the mean of a weight
#: in posterior standard deviations; by the size of the mean. ``auto`` takes the first there is.
Ranking = Literal["auto", "method", "signal_to_noise", "magnitude"]


@dataclass(frozen=True)
class Deletion:
    """An order of weights.

    Attributes
    ----------
    ranking
        How they were ranked.
    scores
        A score for every element of some slots: the larger, the earlier it is deleted.
    """

    ranking: Ranking
    scores: dict[str, Tensor]

    def delete(
        self, model: BNN, values: Mapping[str, Tensor], fraction: float
    ) -> dict[str, Tensor]:
        """Return draws with a share of the ranked elements at zero, over all slots together.

        Parameters
        ----------
        model
            The model of the draws; it has the weights that are points.
        values
            What draws put into the network, draws in front.
        fraction
            Share of the elements, from 0 to 1.
        """
        if not 0 <= fraction <= 1:
            raise CompressionError(f"the share to delete is between 0 and 1. Got {fraction}.")
        flat = torch.cat([score.flatten() for score in self.scores.values()])
        gone = torch.zeros_like(flat, dtype=torch.bool)
        order = flat.argsort(descending=True, stable=True)
        gone[order[: round(fraction * len(flat))]] = True
        changed, start = {**network_values(model, values), **values}, 0
        for name, score in self.scores.items():
            mask = gone[start : start + score.numel()].reshape(score.shape)
            changed[name] = changed[name].masked_fill(mask, 0.0)
            start += score.numel()
        return {**values, **{name: changed[name] for name in self.scores}}


@torch.no_grad()
def deletion_order(model: BNN, guide: Guide, ranking: Ranking = "auto", *, seed: int) -> Deletion:
    """Rank the weights of a fitted model, or what its method prunes instead of weights.

    Parameters
    ----------
    model, guide
        A fitted model.
    ranking
        By what.
    seed
        Of the draws that moments are taken from where there is no formula.
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
            f"the weights of this fit cannot be ranked by {ranking!r}: nothing has such a score."
        )
    return Deletion(ranking, found[ranking])
