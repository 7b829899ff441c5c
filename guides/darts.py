"""A point on the simplex: structure without a posterior."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from guides.mean_field import MeanField, NormalPosterior

#: Standard deviation of the scores, so small that every draw is the same structure.
POINT = 1e-4


class Darts(MeanField):
    """Scores of primitives that are as good as a point: only their location is trained.

    Parameters
    ----------
    program
        Pyro program with the one site ``{slot}_logits``.
    slot
        Name of the structure.
    """

    def __init__(self, program: Callable[..., Any], *, slot: str) -> None:
        super().__init__(program, init_scale=POINT)
        self.slot = slot
        self._scores.fix_scale()

    @property
    def _scores(self) -> NormalPosterior:
        posterior = self[self.names[0]]
        assert isinstance(posterior, NormalPosterior)
        return posterior

    def probabilities(self) -> Tensor:
        """Return the weights of the primitives."""
        return torch.softmax(self._scores.loc.detach(), dim=-1)
