r"""Spike and slab: every weight, or group of weights, is switched on or off.

Model and posterior, for groups :math:`i` of the weights of a layer (each weight by default):

.. math::
    s_i \sim \mathrm{Bernoulli}(\pi), \quad v_{ij} \sim N(0, \tau^2), \quad w_{ij} = s_i v_{ij},
    \qquad q(s_i) = \mathrm{Bernoulli}(p_i), \quad q(v_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)

The objective is minus the ELBO of this discrete model. Every step draws switches that are zero or
one, and the divergence has a closed form:

.. math::
    \mathrm{KL} = \sum_i p_i \log\frac{p_i}{\pi} + (1 - p_i) \log\frac{1 - p_i}{1 - \pi}
        + \sum_{ij} \mathrm{KL}(N(\mu_{ij}, \sigma_{ij}^2) \,\|\, N(0, \tau^2))

So the value of the loss is unbiased. Its gradient is not: it passes through a switch as if that
were its binary concrete relaxation :math:`\mathrm{sigmoid}(u_i)`, :math:`u_i = (\mathrm{logit}\,p_i
+ L_i) / \lambda` with logistic noise :math:`L_i` (straight through). The temperature
:math:`\lambda` of the guide decides the bias and nothing else. Where the log likelihood is
quadratic in a switch the bias vanishes with :math:`\lambda`, while the variance grows; by default
:math:`\lambda` falls from 1 to 0.1 (``--option schedule=constant --option start=0.5`` keeps it).

``--prior '*weight=SpikeAndSlab(inclusion=0.1, group=auto)'`` has rarer switches, and one for all
weights of an input unit or a filter. ``points=interior`` relaxes model and posterior alike,
:math:`w_{ij} = \mathrm{sigmoid}(u_i)\,v_{ij}` with concrete distributions of both: the loss is then
minus the ELBO of the relaxed model, with unbiased gradients, and its divergence is that of one
draw. NUTS, which needs gradients of the model, samples this relaxed model.

Use it to learn which weights are needed, with a probability for each. Groups with :math:`p_i < 1/2`
are pruned.

It fails where inputs are correlated: the posterior is factorised, so of two inputs that could stand
for each other one is kept and looks certain. Behind a switch that is off the values return to their
prior, and it seldom comes back: train longer, or raise ``inclusion``, if a layer loses all weights.
Even for a single weight :math:`p_i` differs from the exact inclusion probability, by up to 0.12 in
a regression with one row: a value that is not used is charged for its divergence all the same.

Reference: Mitchell and Beauchamp (1988), *Bayesian Variable Selection in Linear Regression*, JASA;
relaxation: Maddison, Mnih and Teh (2017), *The Concrete Distribution*, ICLR; straight-through
gradients: Jang, Gu and Poole (2017), *Categorical Reparameterization with Gumbel-Softmax*, ICLR.
"""

import math
from typing import ClassVar, Literal

import pyro
import torch
from pydantic import Field
from pyro.distributions import Normal
from torch import Tensor
from torch.distributions import constraints

from guides.base import Guide
from guides.simplex import Corner, GumbelSoftmax
from guides.spike_and_slab import SpikeAndSlabGuide
from zoo.network.method import Method
from zoo.network.slots import Grouping
from zoo.priors import Options, SlotPrior
from zoo.registry import Recipe, register


class SpikeAndSlabOptions(Options):
    """Settings of the guide: the temperature of its switches."""

    schedule: Literal["constant", "linear", "geometric"] = Field(
        "geometric", description="How the temperature moves from start to end."
    )
    start: float = Field(1.0, ge=1e-3, le=1e3, description="Temperature at the start.")
    end: float = Field(0.1, ge=1e-3, le=1e3, description="Temperature at the end.")


class SpikeAndSlab(SlotPrior):
    r"""Weights behind switches, :math:`w_{ij} = s_i v_{ij}`.

    .. math:: s_i \sim \mathrm{Bernoulli}(\pi), \quad v_{ij} \sim N(0, \tau^2)

    Parameters
    ----------
    inclusion
        :math:`\pi`, the probability of a switch to be on.
    scale
        :math:`\tau`.
    group
        Which weights share a switch.
    points
        ``vertices``: a switch is on or off. ``interior``: it has a binary concrete distribution,
        :math:`s_i = \mathrm{sigmoid}((\mathrm{logit}\,\pi + L_i) / \lambda)`.
    temperature
        :math:`\lambda` of that; without effect on switches that are on or off.

    References
    ----------
    Mitchell and Beauchamp (1988), *Bayesian Variable Selection in Linear Regression*.
    """

    inclusion: float = 0.5
    scale: float = 1.0
    group: Grouping = "element"
    points: Literal["vertices", "interior"] = "vertices"
    temperature: float = 0.5

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "inclusion": constraints.interval(1e-6, 1 - 1e-6),
        "scale": constraints.interval(1e-18, 1e18),
        "temperature": constraints.interval(1e-3, 1e3),
    }
    options: ClassVar[type[Options]] = SpikeAndSlabOptions
    makes_noise: ClassVar[bool] = True

    def model(self) -> Tensor:
        """Sample the coordinates of the switches and the values; return their product."""
        groups = self.groups(self.group)
        logits = self.number((math.log(self.inclusion), math.log1p(-self.inclusion)))
        switch = self.family(self.number(self.temperature), logits, validate_args=False)
        slab = Normal(self.zero, self.number(self.scale))
        u = pyro.sample(self.site("inclusion"), groups.of(switch))
        v = pyro.sample(self.site("slab"), self.elements(slab))
        weights: Tensor = v * groups.spread(self.switched(u.squeeze(-1)))
        return weights

    @property
    def family(self) -> type[GumbelSoftmax]:
        """The distribution of the coordinates of a switch."""
        return Corner if self.points == "vertices" else GumbelSoftmax

    def switched(self, u: Tensor) -> Tensor:
        """Return the switches; one that is on or off has the gradient of its relaxation."""
        relaxed = torch.sigmoid(u)
        if self.points == "interior":
            return relaxed
        return (u > 0).to(u.dtype) + (relaxed - relaxed.detach())

    def guide(self, init_scale: float) -> Guide:
        """Return Bernoulli switches that start on, and Gaussian values."""
        return SpikeAndSlabGuide(
            self.slot.name,
            self.slot.value,
            group_shape=self.slot.group_shape(self.group),
            corners=self.points == "vertices",
            init_scale=init_scale,
            **dict(self.settings),
        )

    def proper(self) -> str | None:
        """Return the relaxed prior, which a sampler that follows gradients can sample."""
        if self.points == "interior":
            return None
        return (
            f"SpikeAndSlab(inclusion={self.inclusion}, scale={self.scale}, group={self.group}, "
            f"points=interior, temperature={self.temperature})"
        )


@register(
    priors={"*": "Normal(0, 1)", "*weight": "SpikeAndSlab(inclusion=0.5, scale=1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Mitchell and Beauchamp (1988), Bayesian Variable Selection in Linear Regression",
    compresses=True,
)
class SpikeAndSlabMethod(Method):
    """Spike-and-slab priors on weights, standard normal priors on biases."""
