"""DARTS: point estimates of the scores of primitives.

Liu, Simonyan and Yang (2019), *DARTS: Differentiable Architecture Search*.
"""

from typing import Any

import pyro
import torch
from torch import Tensor, nn

from guides.point import Point
from guides.slot import SlotGuide


class Scores(nn.Module):
    """The scores of the primitives."""

    def __init__(self, init: Tensor) -> None:
        super().__init__()
        self.loc = nn.Parameter(init.detach().clone())
        self.register_load_state_dict_pre_hook(_without_scale)


def _without_scale(scores: Scores, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Read a state of earlier versions, where points had a small standard deviation."""
    state.pop(f"{prefix}log_scale", None)


class DartsGuide(SlotGuide):
    r"""Point estimate of the scores, :math:`q(\alpha) = \delta(\alpha - \hat\alpha)`.

    Parameters
    ----------
    slot, init
        Name of the structure, whose site is ``{slot}_logits``, and initial scores.
    """

    def __init__(self, slot: str, init: Tensor) -> None:
        super().__init__(slot)
        self.logits = Scores(init)

    def guide(self) -> None:
        """Sample the scores, which are always the same point."""
        pyro.sample(self.site("logits"), Point(self.logits.loc, event_dim=1))

    def probabilities(self) -> Tensor:
        """Return the weights of the primitives."""
        return torch.softmax(self.logits.loc.detach(), dim=-1)
