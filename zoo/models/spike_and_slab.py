r"""Spike and slab: every weight, or group of weights, is switched on or off.

Model and posterior, for groups :math:`i` of the weights of a layer (each weight by default):

.. math::
    s_i \sim \mathrm{Bernoulli}(\pi), \quad v_{ij} \sim N(0, \tau^2), \quad w_{ij} = s_i v_{ij},
    \qquad q(s_i) = \mathrm{Bernoulli}(p_i), \quad q(v_{ij} \mid s_i = 1) = N(\mu_{ij},
    \sigma_{ij}^2)

Only the products are sites, so values behind a switch that is off do not contribute:

.. math::
    \mathrm{KL} = \sum_i p_i \log\frac{p_i}{\pi} + (1 - p_i) \log\frac{1 - p_i}{1 - \pi}
        + p_i \sum_j \mathrm{KL}(N(\mu_{ij}, \sigma_{ij}^2) \,\|\, N(0, \tau^2))

The objective is minus the ELBO of this discrete model. Every step draws switches that are zero or
one, and the loss is unbiased, but its gradient is not: it is that of the binary concrete relaxation
:math:`\mathrm{sigmoid}((\mathrm{logit}\,p_i + L_i) / \lambda)` with logistic noise :math:`L_i`
(straight through). The temperature :math:`\lambda` of the guide affects only this gradient. Where
the log likelihood is quadratic in a switch, the bias vanishes with :math:`\lambda`, while the
variance grows. By default :math:`\lambda` falls from 1 to 0.1; ``--option schedule=constant
--option start=0.5`` keeps it constant.

``--prior '*weight=SpikeAndSlab(inclusion=0.1, group=auto)'`` makes switches rarer, with one for all
weights of an input unit or a filter. NUTS, which needs gradients of the model, samples the
relaxation ``RelaxedSpikeAndSlab()``, whose switches are between zero and one and whose small
weights are not exactly zero.

Use it to learn which weights are needed, with a probability for each. Groups with :math:`p_i < 1/2`
are pruned. For one weight and Gaussian noise the posterior is of this family.

It fails where inputs are correlated. Switches are independent in the posterior, so of two
interchangeable inputs one is kept and looks certain. A switch that is off is rarely drawn on and
recovers slowly: if a layer loses all its weights, raise ``inclusion`` or train longer. All rows of
a batch share the same switches, so gradients are noisier than those of Gaussian weights.

Reference: Mitchell and Beauchamp (1988), *Bayesian Variable Selection in Linear Regression*, JASA;
posterior: Titsias and Lázaro-Gredilla (2011), *Spike and Slab Variational Inference for Multi-Task
and Multiple Kernel Learning*, NIPS; relaxation: Maddison, Mnih and Teh (2017), *The Concrete
Distribution*, ICLR; straight-through gradients: Jang, Gu and Poole (2017), *Categorical
Reparameterization with Gumbel-Softmax*, ICLR.
"""

import math
from typing import ClassVar, Literal

import pyro
import torch
from pydantic import Field
from pyro.distributions import Logistic, Normal
from torch import Tensor
from torch.distributions import constraints

from guides.base import Guide
from guides.spike_and_slab import SpikeAndSlabGuide, SwitchedNormal
from zoo.network.method import Method
from zoo.network.slots import Grouping
from zoo.priors import Options, SlotPrior
from zoo.registry import Recipe, register


class SpikeAndSlabOptions(Options):
    """Settings of the guide: the temperature of its switches."""

    schedule: Literal["constant", "linear", "geometric"] = Field(
        "geometric", description="Schedule of the temperature from start to end."
    )
    start: float = Field(1.0, ge=1e-3, le=1e3, description="Initial temperature.")
    end: float = Field(0.1, ge=1e-3, le=1e3, description="Final temperature.")


def _log_odds(probability: float) -> float:
    return math.log(probability) - math.log1p(-probability)


class SpikeAndSlab(SlotPrior):
    r"""Weights behind switches, :math:`w_{ij} = s_i v_{ij}`.

    Parameters
    ----------
    inclusion
        :math:`\pi`, the probability that a switch is on.
    scale
        :math:`\tau`.
    group
        Which weights share a switch.
    """

    inclusion: float = 0.5
    scale: float = 1.0
    group: Grouping = "element"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "inclusion": constraints.interval(1e-6, 1 - 1e-6),
        "scale": constraints.interval(1e-18, 1e18),
    }
    options: ClassVar[type[Options]] = SpikeAndSlabOptions
    makes_noise: ClassVar[bool] = True

    def model(self) -> Tensor:
        """Sample the weights: switches times values."""
        shape = self.slot.shape
        log_odds = self.number(_log_odds(self.inclusion)).expand(self.slot.group_shape(self.group))
        loc, scale = self.zero.expand(shape), self.number(self.scale).expand(shape)
        prior = SwitchedNormal(log_odds, loc, scale, self.one, event_dim=len(shape))
        weights: Tensor = pyro.sample(self.slot.name, prior)
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Return switches that are probably on, and Gaussian values."""
        return SpikeAndSlabGuide(
            self.slot.name,
            self.slot.value,
            group_shape=self.slot.group_shape(self.group),
            init_scale=init_scale,
            **dict(self.settings),
        )

    def proper(self) -> str:
        """Return the relaxed prior, which gradient-based samplers need."""
        return (
            f"RelaxedSpikeAndSlab(inclusion={self.inclusion}, scale={self.scale}, "
            f"group={self.group})"
        )


class RelaxedSpikeAndSlab(SlotPrior):
    r"""Binary concrete relaxation of `SpikeAndSlab`, with switches between off and on.

    .. math:: s_i = \mathrm{sigmoid}((\mathrm{logit}\,\pi + L_i) / \lambda)

    Parameters
    ----------
    inclusion, scale, group
        As for `SpikeAndSlab`.
    temperature
        :math:`\lambda`: the lower, the closer the switches are to zero or one.
    """

    inclusion: float = 0.5
    scale: float = 1.0
    group: Grouping = "element"
    temperature: float = 0.5

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        **SpikeAndSlab.ranges,
        "temperature": constraints.interval(1e-3, 1e3),
    }

    def model(self) -> Tensor:
        """Sample the coordinates of the switches and the values; return their product."""
        groups = self.groups(self.group)
        loc = self.number(_log_odds(self.inclusion) / self.temperature)
        scale = self.number(1 / self.temperature)
        u = pyro.sample(self.site("inclusion"), groups.of(Logistic(loc, scale)))
        slab = Normal(self.zero, self.number(self.scale))
        v = pyro.sample(self.site("slab"), self.elements(slab))
        weights: Tensor = v * groups.spread(torch.sigmoid(u))
        return weights

    def starts(self) -> dict[str, Tensor]:
        """Start the values at the weights of the network."""
        return {self.site("slab"): self.slot.value}


@register(
    priors={"*": "Normal(0, 1)", "*weight": "SpikeAndSlab(inclusion=0.5, scale=1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Mitchell and Beauchamp (1988), Bayesian Variable Selection in Linear Regression",
    compresses=True,
)
class SpikeAndSlabMethod(Method):
    """Spike-and-slab priors on weights, standard normal priors on biases."""

    own_guide = (
        "weights of spike_and_slab are zero with some probability. Use the prior "
        "RelaxedSpikeAndSlab() with the method mean_field"
    )
