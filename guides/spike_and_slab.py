"""Spike and slab: a switch for every group of weights, and Gaussian values behind it."""

import math
from typing import ClassVar

import pyro
import torch
from torch import Tensor, nn

from guides.gumbel_softmax_structure import temperature_at
from guides.simplex import Corner, GumbelSoftmax
from guides.slot import LocScale, SlotGuide

#: Probability of every switch to be on at the start: weights are trained before they are pruned.
INIT_INCLUSION = 0.9


class SpikeAndSlabGuide(SlotGuide):
    r"""Posterior of one weight tensor :math:`w_{ij} = s_i v_{ij}`.

    .. math:: q(s_i) = \mathrm{Bernoulli}(p_i), \qquad q(v_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)

    The site of a switch is :math:`u_i = (\log\frac{p_i}{1 - p_i} + L_i) / \lambda`, with logistic
    noise :math:`L_i`: a switch is on where :math:`u_i > 0`, which has probability :math:`p_i` at
    any temperature, and its relaxation is :math:`\mathrm{sigmoid}(u_i)`, the binary concrete
    distribution.

    Parameters
    ----------
    slot
        Name of the weight tensor.
    init
        Where the means start.
    group_shape
        Shape of one switch per group, broadcastable against the weights.
    corners
        Whether a switch is on or off; otherwise it is anywhere between, see `guides.simplex`.
    schedule
        ``constant``, ``linear`` or ``geometric``: how the temperature follows the training.
    start, end
        Temperatures at the start and at the end.
    init_scale
        Standard deviations at the start.

    References
    ----------
    Maddison, Mnih and Teh (2017), *The Concrete Distribution*.
    """

    #: Groups that are more probably off than on are pruned.
    default_threshold: ClassVar[float] = 0.0

    def __init__(
        self,
        slot: str,
        init: Tensor,
        *,
        group_shape: torch.Size,
        corners: bool = True,
        schedule: str = "constant",
        start: float = 0.5,
        end: float = 0.5,
        init_scale: float = 0.01,
    ) -> None:
        super().__init__(slot)
        self.group_shape = group_shape
        self.family = Corner if corners else GumbelSoftmax
        self.schedule, self.start, self.end = schedule, start, end
        self.inclusion = _Switches(init.new_zeros(group_shape.numel()), start)
        self.slab = LocScale(init, init_scale)

    def guide(self) -> None:
        """Sample the coordinates of the switches, then the values behind them."""
        pyro.sample(self.site("inclusion"), self.switches().to_event(1))
        pyro.sample(self.site("slab"), self.slab.normal())

    def switches(self) -> GumbelSoftmax:
        """Return the current posterior of the switches, one for each element of the batch."""
        log_odds = self.inclusion.log_odds
        logits = torch.stack([log_odds, torch.zeros_like(log_odds)], dim=-1)
        return self.family(self.inclusion.log_temperature.exp(), logits, validate_args=False)

    def advance(self, progress: float) -> None:
        """Let the temperature follow the training."""
        value = temperature_at(self.schedule, self.start, self.end, progress)
        self.inclusion.log_temperature.fill_(math.log(value))

    def group_scores(self) -> Tensor:
        r"""Return :math:`\log\frac{1 - p_i}{p_i}` of every group: positive where it is off."""
        return -self.inclusion.log_odds.double()

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        r"""Marginal mean :math:`p\mu` and variance :math:`p (\sigma^2 + \mu^2) - p^2 \mu^2`."""
        p = torch.sigmoid(self.inclusion.log_odds.double()).reshape(self.group_shape)
        loc, variance = self.slab.loc.double(), (2 * self.slab.log_scale.double()).exp()
        return p * loc, p * variance + p * (1 - p) * loc.square()


class _Switches(nn.Module):
    """Log odds of switches to be on, and the temperature of their relaxation."""

    log_temperature: Tensor

    def __init__(self, like: Tensor, temperature: float) -> None:
        super().__init__()
        start = math.log(INIT_INCLUSION / (1 - INIT_INCLUSION))
        self.log_odds = nn.Parameter(torch.full_like(like, start))
        self.register_buffer("log_temperature", like.new_tensor(math.log(temperature)))
