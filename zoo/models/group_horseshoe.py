r"""Bayesian compression with a group horseshoe: whole units and filters are switched off.

Per layer, with groups :math:`i` (input units of a linear layer, output channels of a convolution):

.. math::
    s \sim C^+(0, \tau_0), \quad \tilde z_i \sim C^+(0, 1), \quad \tilde w_{ij} \sim N(0, 1), \quad
    w_{ij} = \tilde w_{ij} \tilde z_i s

Each half-Cauchy is a Gamma times an inverse Gamma, :math:`\tilde z_i^2 = \tilde\alpha_i
\tilde\beta_i` with :math:`\tilde\alpha_i \sim \mathrm{Gamma}(\frac12, 1)`, :math:`\tilde\beta_i
\sim \mathrm{InvGamma}(\frac12, 1)`, and :math:`s^2 = s_a s_b` likewise with :math:`s_a \sim
\mathrm{Gamma}(\frac12, \text{scale}=\tau_0^2)`. The posterior is log-normal for each scale and
Gaussian for each :math:`\tilde w_{ij}`, so every divergence has a closed form:

.. math::
    q(s_a) = \mathrm{LN}(\mu_{s_a}, \sigma_{s_a}^2), \quad
    q(\tilde\alpha_i) = \mathrm{LN}(\mu_{\tilde\alpha_i}, \sigma_{\tilde\alpha_i}^2), \quad
    q(\tilde w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)

and likewise for :math:`s_b` and :math:`\tilde\beta_i`. Biases have standard normal priors.

Use it to find out how much of a network is needed, and to remove the rest. The default
:math:`\tau_0 = 10^{-5}` is the published one and prunes strongly; raise it with ``--prior
'*.weight=GroupHorseshoe(scale=0.1)'`` when accuracy matters more than size. As in
`group_normal_jeffreys` there is no published threshold for pruning, and groups whose scores lie
between the two clusters are assigned arbitrarily.

Reference: Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*, NIPS.
Carvalho, Polson and Scott (2010), *The horseshoe estimator for sparse signals*, Biometrika.
"""

import math
from typing import ClassVar

import pyro
import torch
from pydantic import Field
from pyro.distributions import Gamma, InverseGamma, Normal
from torch import Tensor
from torch.distributions import constraints

from guides.base import Guide
from guides.group_horseshoe import GroupHorseshoeGuide
from zoo.network.method import Method
from zoo.network.slots import Grouping
from zoo.priors import Options, SlotPrior
from zoo.registry import Recipe, register


class GroupOptions(Options):
    """Settings of the guide."""

    max_sd: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        description="Bound of the posterior sds of the standardised weights. The publication sets "
        "0.2 for the first layer of dense networks; without a bound more weights are pruned, "
        "including relevant ones.",
    )


class GroupScales(SlotPrior, registered=False):
    """Base of priors with a scale per group times standardised weights, the site ``base``."""

    options: ClassVar[type[Options]] = GroupOptions
    makes_noise: ClassVar[bool] = True
    moved_parameters: ClassVar[tuple[str, ...]] = ("max_sd",)

    @torch.no_grad()
    def after_update(self, guide: Guide) -> None:
        """Keep the sds of the standardised weights below their bound."""
        max_sd, base = self.settings.max_sd, getattr(guide, "base", None)
        if max_sd is not None and base is not None:
            base.log_scale.clamp_(max=math.log(max_sd))


class GroupHorseshoe(GroupScales):
    r"""Half-Cauchy scales, one per group and one per slot.

    Parameters
    ----------
    scale
        The global scale :math:`\tau_0`: the smaller, the sparser.
    group
        Which weights share a scale.
    """

    scale: float = 1e-5
    group: Grouping = "auto"

    # The square of the scale and the inverse of that must be normal numbers, also in float32.
    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "scale": constraints.interval(1e-18, 1e18)
    }
    old_names: ClassVar[tuple[str, ...]] = ("Horseshoe",)

    def model(self) -> Tensor:
        """Sample global scale, group scales and standardised weights; return their product.

        Equations 12 to 14 of the paper. torch's Gamma takes the rate, the inverse of the scale.
        """
        groups = self.groups(self.group)
        s_a = pyro.sample(self.site("global_a"), Gamma(self.one_half, self.number(self.scale**-2)))
        s_b = pyro.sample(self.site("global_b"), InverseGamma(self.one_half, self.one))
        alpha = pyro.sample(self.site("local_a"), groups.of(Gamma(self.one_half, self.one)))
        beta = pyro.sample(self.site("local_b"), groups.of(InverseGamma(self.one_half, self.one)))
        base = pyro.sample(self.site("base"), self.elements(Normal(self.zero, self.one)))
        # Roots first: the product of four scales can leave the range of float32.
        s = (s_a.sqrt() * s_b.sqrt()).unsqueeze(-1)
        z = s * (alpha.sqrt() * beta.sqrt())
        weights: Tensor = base * groups.spread(z)
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Return log-normal scales and Gaussian standardised weights."""
        return GroupHorseshoeGuide(
            self.slot.name,
            self.slot.value,
            global_scale=self.scale,
            group_shape=self.slot.group_shape(self.group),
            init_scale=init_scale,
        )


@register(
    priors={"*": "Normal(0, 1)", "*weight": "GroupHorseshoe(scale=1e-5, group=auto)"},
    # Log-variances start at -9 (a standard deviation of 0.011) as in the published recipe: training
    # begins as a deterministic network and the KL is phased in.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.011),
    reference="Louizos, Ullrich and Welling (2017), Bayesian Compression for Deep Learning",
    compresses=True,
)
class GroupHorseshoeMethod(Method):
    """Horseshoe priors on weights, standard normal priors on biases."""
