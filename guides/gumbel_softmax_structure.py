"""Posteriors of the structure of a network: weights of primitives on simplices or in a cube."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from guides.mean_field import MeanField, SitePosterior
from guides.simplex import Corner, Dirichlet, GumbelSoftmax, coordinates_of

Schedule = Literal["trained", "constant", "linear", "geometric"]


def temperature_at(schedule: str, start: float, end: float, progress: float) -> float:
    """Return the temperature at a share of the training that is done.

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


class GumbelSoftmaxPosterior(SitePosterior):
    r"""Gumbel-Softmax posterior :math:`GS(s_q, \theta)` of one site of coordinates.

    Parameters
    ----------
    site
        The site of the traced model.
    init_scale
        Not used: the spread of this family is its temperature.
    corners
        Whether it is the law of a corner.
    schedule
        ``trained``: the temperature is a parameter of the posterior. Otherwise it follows the
        training, see `temperature_at`.
    start, end
        Temperatures at the start and at the end.
    """

    log_temperature: Tensor

    def __init__(
        self,
        site: Mapping[str, Any],
        init_scale: float,
        *,
        corners: bool,
        schedule: Schedule,
        start: float,
        end: float,
    ) -> None:
        super().__init__(site)
        value: Tensor = site["value"]
        self.family = Corner if corners else GumbelSoftmax
        self.schedule, self.start, self.end = schedule, start, end
        self.logits = nn.Parameter(value.new_zeros(*value.shape[:-1], value.shape[-1] + 1))
        log_temperature = value.new_full(value.shape[:-1], math.log(start))
        if schedule == "trained":
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def law(self) -> GumbelSoftmax:
        """Return the current posterior, one simplex for each element of a batch."""
        return self.family(self.log_temperature.exp(), self.logits, validate_args=False)

    def distribution(self) -> Any:
        """Return the current posterior as a Pyro distribution."""
        return self.law().to_event(self.event_dim - 1)

    def median(self) -> Tensor:
        """Return the point that the median noise of every coordinate leads to."""
        return coordinates_of(self.logits) / self.log_temperature.exp().unsqueeze(-1)

    def probabilities(self) -> Tensor:
        """Return the probability of every corner to have the largest weight."""
        return self.law().probabilities

    def advance(self, progress: float) -> None:
        """Set the temperature that belongs to a share of the training."""
        if self.schedule != "trained":
            value = temperature_at(self.schedule, self.start, self.end, progress)
            self.log_temperature.fill_(math.log(value))


class DirichletPosterior(SitePosterior):
    """Dirichlet posterior of one site of coordinates; its divergence from a Dirichlet is known.

    Parameters
    ----------
    site
        The site of the traced model.
    init_scale
        Not used: it starts uniform.
    """

    def __init__(self, site: Mapping[str, Any], init_scale: float) -> None:
        super().__init__(site)
        value: Tensor = site["value"]
        self.log_concentration = nn.Parameter(
            value.new_zeros(*value.shape[:-1], value.shape[-1] + 1)
        )

    def law(self) -> Dirichlet:
        """Return the current posterior, one simplex for each element of a batch."""
        return Dirichlet(self.log_concentration.exp(), validate_args=False)

    def distribution(self) -> Any:
        """Return the current posterior as a Pyro distribution."""
        return self.law().to_event(self.event_dim - 1)

    def median(self) -> Tensor:
        """Return the coordinates of the mean weights."""
        return coordinates_of(self.log_concentration)

    def probabilities(self) -> Tensor:
        """Return the mean weights."""
        return torch.softmax(self.log_concentration, dim=-1)


class GumbelSoftmaxStructure(MeanField):
    r"""Posterior of the structure of one mixture.

    Parameters
    ----------
    program
        Pyro program with the one site ``{slot}_logits``, coordinates of one or more simplices.
    slot
        Name of the structure.
    posterior
        Family of the site, as for `MeanField`.

    References
    ----------
    Bakhteev and Strijov (2021), structure selection with a generalised variational objective.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        slot: str,
        posterior: Callable[[Mapping[str, Any], float], SitePosterior],
    ) -> None:
        super().__init__(program, posterior=posterior)
        self.slot = slot

    @classmethod
    def gumbel_softmax(
        cls,
        program: Callable[..., Any],
        *,
        slot: str,
        corners: bool,
        schedule: Schedule,
        start: float,
        end: float,
    ) -> "GumbelSoftmaxStructure":
        """Return the Gumbel-Softmax family, see `GumbelSoftmaxPosterior`."""
        family = partial(
            GumbelSoftmaxPosterior, corners=corners, schedule=schedule, start=start, end=end
        )
        return cls(program, slot=slot, posterior=family)

    @classmethod
    def dirichlet(cls, program: Callable[..., Any], *, slot: str) -> "GumbelSoftmaxStructure":
        """Return the Dirichlet family, see `DirichletPosterior`."""
        return cls(program, slot=slot, posterior=DirichletPosterior)

    def probabilities(self) -> Tensor:
        """Return how probable each primitive is, in a cube one number pair each."""
        posterior = self[self.names[0]]
        assert isinstance(posterior, GumbelSoftmaxPosterior | DirichletPosterior)
        return posterior.probabilities().detach()

    def advance(self, progress: float) -> None:
        """Let the temperature follow the training."""
        posterior = self[self.names[0]]
        if isinstance(posterior, GumbelSoftmaxPosterior):
            posterior.advance(progress)
