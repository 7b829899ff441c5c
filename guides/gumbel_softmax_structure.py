"""Posteriors of the structure of a network: weights of primitives on simplices or in a cube."""

import math
from typing import Literal

import pyro
import torch
from torch import Tensor, nn

from guides.simplex import Corner, Dirichlet, GumbelSoftmax
from guides.slot import SlotGuide

Schedule = Literal["trained", "constant", "linear", "geometric"]


def temperature_at(schedule: str, start: float, end: float, progress: float) -> float:
    """Return the temperature after a fraction of the training.

    Parameters
    ----------
    schedule
        ``linear`` or ``geometric``: from ``start`` to ``end``; any other stays at ``start``.
    start, end
        The temperatures.
    progress
        Between zero and one.
    """
    if schedule == "linear":
        return start + (end - start) * progress
    if schedule == "geometric":
        return math.exp((1 - progress) * math.log(start) + progress * math.log(end))
    return start


class GumbelSoftmaxStructureGuide(SlotGuide):
    r"""Gumbel-Softmax posterior of the structure of one mixture.

    .. math:: q(\gamma) = GS(s_q, \theta)

    The site is :math:`u_l = \log(\gamma_l / \gamma_K)`, the coordinates of one simplex, or of
    several.

    Parameters
    ----------
    slot
        Name of the structure.
    init
        Logits of the prior, with one row per simplex; the posterior starts without a favourite.
    corners
        Whether draws are corners of the simplex, see `guides.simplex.Corner`.
    schedule
        ``trained``: the temperature is a parameter of the posterior. Otherwise it follows the
        training, see `temperature_at`.
    start, end
        Temperatures at the start and at the end.

    References
    ----------
    Bakhteev and Strijov (2021), structure selection with a generalised variational objective.
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
        """Return the current posterior, one simplex for each element of a batch."""
        temperature = self.logits.log_temperature.exp()
        return self.family(temperature, self.logits.logits, validate_args=False)

    def probabilities(self) -> Tensor:
        """Return how probable each primitive is, in a cube one number pair each."""
        return self.distribution().probabilities.detach()

    def advance(self, progress: float) -> None:
        """Let the temperature follow the training."""
        if self.schedule != "trained":
            value = temperature_at(self.schedule, self.start, self.end, progress)
            self.logits.log_temperature.fill_(math.log(value))


class _Logits(nn.Module):
    """Logits of the primitives, all zero at the start, and a temperature for each simplex."""

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
    r"""Dirichlet posterior of the structure of one mixture.

    Its divergence from a Dirichlet prior has a closed form.

    Parameters
    ----------
    slot
        Name of the structure.
    init
        Concentrations of the prior, with one row per simplex; the posterior starts uniform.
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
    """Log concentrations, all zero at the start."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.log_concentration = nn.Parameter(torch.zeros_like(like))
