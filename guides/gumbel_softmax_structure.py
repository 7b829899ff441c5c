r"""Posteriors of the structure of a network: weights of primitives on simplices or in a cube.

The sites are the coordinates :math:`u_l = \log(\gamma_l / \gamma_K)` of one or several simplices.

Bakhteev and Strijov (2021), *Selection of a deep learning model structure*.
"""

import math
from typing import Literal

import pyro
import torch
from torch import Tensor, nn

from guides.simplex import Corner, Dirichlet, GumbelSoftmax
from guides.slot import SlotGuide

Schedule = Literal["trained", "constant", "linear", "geometric"]


def temperature_at(schedule: str, start: float, end: float, progress: float) -> float:
    """Return the temperature after a fraction ``progress`` of the training.

    A ``linear`` or ``geometric`` schedule goes from ``start`` to ``end``; any other stays at
    ``start``.
    """
    if schedule == "linear":
        return start + (end - start) * progress
    if schedule == "geometric":
        return math.exp((1 - progress) * math.log(start) + progress * math.log(end))
    return start


class GumbelSoftmaxStructureGuide(SlotGuide):
    r"""Gumbel-Softmax posterior of one structure, :math:`q(\gamma) = GS(s_q, \theta)`.

    Parameters
    ----------
    slot, init
        Name of the structure, and logits of the prior with one row per simplex. Logits of the
        posterior are initially zero.
    corners
        Whether draws are corners of the simplex, see `guides.simplex.Corner`.
    schedule, start, end
        ``trained``: the temperature is a parameter of the posterior, initially ``start``. Otherwise
        it is that of `temperature_at`.
    """

    def __init__(
        self,
        slot: str,
        init: Tensor,
        *,
        corners: bool = False,
        schedule: Schedule = "trained",
        start: float = 1.0,
        end: float = 0.3,
    ) -> None:
        super().__init__(slot)
        self.schedule, self.start, self.end = schedule, start, end
        self.family = Corner if corners else GumbelSoftmax
        self.logits = _Logits(init, start, is_trained=schedule == "trained")

    def guide(self) -> None:
        """Sample the coordinates of the weights of the primitives."""
        gamma = self.distribution()
        pyro.sample(self.site("logits"), gamma.to_event(len(gamma.batch_shape)))

    def distribution(self) -> GumbelSoftmax:
        """Return the current posterior, with one batch element per simplex."""
        temperature = self.logits.log_temperature.exp()
        return self.family(temperature, self.logits.logits, validate_args=False)

    def probabilities(self) -> Tensor:
        """Return the probability of each primitive; in a cube, a pair for each."""
        return self.distribution().probabilities.detach()

    def advance(self, progress: float) -> None:
        """Follow the schedule of the temperature."""
        if self.schedule != "trained":
            value = temperature_at(self.schedule, self.start, self.end, progress)
            self.logits.log_temperature.fill_(math.log(value))


class _Logits(nn.Module):
    """Logits of the primitives, initially zero, and a temperature for each simplex."""

    log_temperature: Tensor

    def __init__(self, like: Tensor, start: float, *, is_trained: bool) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros_like(like))
        log_temperature = like.new_full(like.shape[:-1], math.log(start))
        if is_trained:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)


class DirichletStructureGuide(SlotGuide):
    """Dirichlet posterior of the structure of one mixture, initially uniform.

    Parameters
    ----------
    slot, init
        Name of the structure, and concentrations of the prior with one row per simplex.
    """

    def __init__(self, slot: str, init: Tensor) -> None:
        super().__init__(slot)
        self.logits = _Concentration(init)

    def guide(self) -> None:
        """Sample the coordinates of the weights of the primitives."""
        gamma = Dirichlet(self.logits.log_concentration.exp(), validate_args=False)
        pyro.sample(self.site("logits"), gamma.to_event(len(gamma.batch_shape)))

    def probabilities(self) -> Tensor:
        """Return the mean weights."""
        return torch.softmax(self.logits.log_concentration.detach(), dim=-1)


class _Concentration(nn.Module):
    """Log concentrations, initially zero."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.log_concentration = nn.Parameter(torch.zeros_like(like))
