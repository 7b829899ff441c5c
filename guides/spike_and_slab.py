"""Spike and slab: weights that are zero with some probability, and Gaussian otherwise.

Titsias and Lázaro-Gredilla (2011), *Spike and Slab Variational Inference for Multi-Task and
Multiple Kernel Learning*.
"""

import math
from typing import Any, ClassVar

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import Normal, constraints
from torch.nn.functional import logsigmoid

from guides.distribution_base import analytic_kl
from guides.gumbel_softmax_structure import temperature_at
from guides.slot import LocScale, SlotGuide

#: Initial probability that a switch is on: weights are trained before they are pruned.
INIT_INCLUSION = 0.9


class SwitchedNormal(TorchDistribution):
    r"""Weights :math:`w_{ij} = s_i v_{ij}` with random switches :math:`s_i` and Gaussian values.

    The density is that of a mixture of zero and a Normal, :math:`\log (1 - p_i)` for a group of
    zeros and :math:`\log p_i + \sum_j \log N(w_{ij})` for any other. Draws are exact. Their
    gradient is that of the binary concrete relaxation of the switch,
    :math:`\mathrm{sigmoid}((\mathrm{logit}\,p_i + L_i) / \lambda)` with logistic noise :math:`L_i`
    (straight through).

    Parameters
    ----------
    log_odds
        :math:`\mathrm{logit}\,p_i`, with size one along the dimensions that share a switch.
    loc, scale
        Mean and standard deviation of the values, in the shape of the weights.
    temperature
        :math:`\lambda`, which affects only the gradients of draws.
    event_dim
        Number of dimensions of the weights.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True

    def __init__(
        self, log_odds: Tensor, loc: Tensor, scale: Tensor, temperature: Tensor, event_dim: int
    ) -> None:
        self.log_odds, self.loc, self.scale = log_odds, loc, scale
        self.temperature, self.num_dims = temperature, event_dim
        shape = torch.broadcast_shapes(log_odds.shape, loc.shape, scale.shape)
        split = len(shape) - event_dim
        super().__init__(shape[:split], shape[split:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All real numbers, including zero."""
        return constraints.independent(constraints.real, self.num_dims)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "SwitchedNormal":
        """Return the same distribution with a larger batch shape."""
        dims = self.num_dims
        log_odds, loc, scale = (
            p.expand(*batch_shape, *p.shape[p.dim() - dims :]) for p in self._parameters()
        )
        return SwitchedNormal(log_odds, loc, scale, self.temperature, dims)

    def _parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.log_odds, self.loc, self.scale

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through all parameters."""
        odds, loc, scale = (p.expand(*sample_shape, *p.shape) for p in self._parameters())
        first, second = (torch.empty_like(odds).exponential_().log() for _ in range(2))
        u = (odds + first - second) / self.temperature
        relaxed = torch.sigmoid(u)
        switch = (u > 0).to(u.dtype) + (relaxed - relaxed.detach())
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, dtype=loc.dtype, device=loc.device)
        return switch * (loc + scale * noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density with respect to an atom at zero plus the Lebesgue measure."""
        density = self._per_group(Normal(self.loc, self.scale, validate_args=False).log_prob(value))
        is_on = self._per_group((value != 0).to(value.dtype)) > 0
        on, off = logsigmoid(self.log_odds), logsigmoid(-self.log_odds)
        return self._total(torch.where(is_on, on + density, off))

    @property
    def median(self) -> Tensor:
        """The mean of the values behind switches that are probably on; zero behind others."""
        return torch.where(self.log_odds > 0, self.loc, torch.zeros_like(self.loc))

    def _per_group(self, values: Tensor) -> Tensor:
        """Sum over the elements that share a switch, keeping their dimensions."""
        groups = self.log_odds.shape[self.log_odds.dim() - self.num_dims :]
        shared = [dim - self.num_dims for dim, size in enumerate(groups) if size == 1]
        return values.sum(shared, keepdim=True) if shared else values

    def _total(self, values: Tensor) -> Tensor:
        return values.sum(tuple(range(-self.num_dims, 0)))


@analytic_kl(SwitchedNormal, SwitchedNormal)
def _kl_switched_normal(q: SwitchedNormal, p: SwitchedNormal) -> Tensor:
    """Divergence of the switches plus, where they are on, that of the values."""
    on, off = torch.sigmoid(q.log_odds), torch.sigmoid(-q.log_odds)
    of_values = torch.distributions.kl_divergence(
        *(Normal(fn.loc, fn.scale, validate_args=False) for fn in (q, p))
    )
    when_on = logsigmoid(q.log_odds) - logsigmoid(p.log_odds) + q._per_group(of_values)
    when_off = logsigmoid(-q.log_odds) - logsigmoid(-p.log_odds)
    return q._total(on * when_on + off * when_off)


class SpikeAndSlabGuide(SlotGuide):
    r"""Posterior of one weight tensor, zero or Gaussian.

    .. math:: q(w_{ij}) = (1 - p_i) \delta(w_{ij}) + p_i N(w_{ij} \mid \mu_{ij}, \sigma_{ij}^2)

    Parameters
    ----------
    slot, init, init_scale
        Name of the weight tensor, initial means and initial standard deviation.
    group_shape
        Shape of one switch per group, broadcastable with the weights.
    schedule, start, end
        Temperature during training, as for `guides.gumbel_softmax_structure.temperature_at`.
    """

    #: Groups that are more probably off than on are pruned.
    default_threshold: ClassVar[float] = 0.0
    log_temperature: Tensor

    def __init__(
        self,
        slot: str,
        init: Tensor,
        *,
        group_shape: torch.Size,
        schedule: str = "constant",
        start: float = 0.5,
        end: float = 0.5,
        init_scale: float = 0.01,
    ) -> None:
        super().__init__(slot)
        self.group_shape = group_shape
        self.schedule, self.start, self.end = schedule, start, end
        log_odds = math.log(INIT_INCLUSION / (1 - INIT_INCLUSION))
        self.log_odds = nn.Parameter(init.new_full(group_shape, log_odds))
        self.w = LocScale(init, init_scale)
        self.register_buffer("log_temperature", init.new_tensor(math.log(start)))

    def guide(self) -> None:
        """Sample the weights."""
        loc, scale, temperature = self.w.loc, self.w.scale, self.log_temperature.exp()
        pyro.sample(
            self.slot, SwitchedNormal(self.log_odds, loc, scale, temperature, event_dim=loc.dim())
        )

    def advance(self, progress: float) -> None:
        """Follow the schedule of the temperature."""
        value = temperature_at(self.schedule, self.start, self.end, progress)
        self.log_temperature.fill_(math.log(value))

    def group_scores(self) -> Tensor:
        r"""Return :math:`\log\frac{1 - p_i}{p_i}` of every group: positive where it is off."""
        return -self.log_odds.double().flatten()

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        r"""Marginal mean :math:`p\mu` and variance :math:`p \sigma^2 + p (1 - p) \mu^2`."""
        p, loc = torch.sigmoid(self.log_odds.double()), self.w.loc.double()
        variance = (2 * self.w.log_scale.double()).exp()
        return p * loc, p * variance + p * (1 - p) * loc.square()
