r"""Bayesian compression with a normal-Jeffreys prior: a noise level per unit or filter.

Per layer, with groups :math:`i` (input units of a linear layer, output channels of a convolution):

.. math::
    p(z_i) \propto \frac{1}{|z_i|}, \quad \tilde w_{ij} \sim N(0, 1), \quad
    w_{ij} = z_i \tilde w_{ij}; \qquad
    q(z_i) = N(\mu_{z_i}, \sigma_{z_i}^2), \quad q(\tilde w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)

Given its scale the posterior of a weight is :math:`N(z_i \mu_{ij}, z_i^2 \sigma_{ij}^2)` and its
prior :math:`N(0, z_i^2)`, so the scale cancels:

.. math::
    \mathrm{KL} = \sum_i \mathrm{KL}_{LU}(\alpha_i) + \sum_{ij} \tfrac12 (\sigma_{ij}^2 +
    \mu_{ij}^2 - \log \sigma_{ij}^2 - 1), \qquad \alpha_i = \frac{\sigma_{z_i}^2}{\mu_{z_i}^2}

with :math:`\mathrm{KL}_{LU}` as in `sparse_vd`. Groups are pruned by :math:`\log\alpha_i`. There is
no published threshold: the scores are split into two clusters, and the split is relaxed when it
costs accuracy on the training rows. Biases have standard normal priors.

Use it to find out how many units a network needs: what is left is a smaller dense network. There
is nothing to tune, as there is with the global scale of `group_horseshoe`, and nothing to turn
when it prunes too much or too little. It fails where the scores have no gap: between the clusters
lie groups that any threshold treats arbitrarily, so read the histogram in the report. As in
`sparse_vd`, the prior is improper, the ELBO has an arbitrary constant, and without a warm-up of the
KL everything is pruned. NUTS samples the proper counterpart ``TruncatedNormalJeffreys()``.

Reference: Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*, NIPS.
"""

from typing import ClassVar

import pyro
from pyro.distributions import Normal
from torch import Tensor

from guides.base import Guide
from guides.group_normal_jeffreys import GroupNormalJeffreysGuide
from zoo.distributions import LogUniform
from zoo.models.group_horseshoe import GroupHorseshoeOptions, bound_sd
from zoo.network.method import Method
from zoo.network.slots import Grouping
from zoo.priors import Options, SlotPrior
from zoo.registry import ExpectedFailure, Recipe, register


class GroupNormalJeffreys(SlotPrior):
    r"""An improper log-uniform scale for each group.

    .. math::
        w_{ij} = z_i \tilde w_{ij}, \quad p(z_i) \propto |z_i|^{-1}, \quad \tilde w_{ij} \sim N(0,
        1)

    Integrated over its scale, each weight is log-uniform, :math:`p(w) \propto |w|^{-1}`. The prior
    is improper: only differences of the ELBO mean something, and it cannot be sampled.

    Parameters
    ----------
    group
        Which weights share a scale.

    References
    ----------
    Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
    """

    group: Grouping = "auto"

    options: ClassVar[type[Options]] = GroupHorseshoeOptions
    is_improper: ClassVar[bool] = True
    makes_noise: ClassVar[bool] = True
    old_names: ClassVar[tuple[str, ...]] = ("NormalJeffreys",)
    moved_parameters: ClassVar[tuple[str, ...]] = ("max_sd",)

    def model(self) -> Tensor:
        """Sample group scales and standardised weights; return their product."""
        groups = self.groups(self.group)
        z = pyro.sample(self.site("z"), groups.of(LogUniform()))
        base = pyro.sample(self.site("base"), self.elements(Normal(self.zero, self.one)))
        weights: Tensor = base * groups.spread(z)
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Gaussian group scales around one, Gaussian standardised weights."""
        return GroupNormalJeffreysGuide(
            self.slot.name,
            self.slot.value,
            group_shape=self.slot.group_shape(self.group),
            init_scale=init_scale,
        )

    def after_update(self, guide: Guide) -> None:
        """Keep the sds of the standardised weights below their bound."""
        bound_sd(guide, self.settings.max_sd)

    def proper(self) -> str:
        """Return the same with scales that are bounded on both sides."""
        return f"TruncatedNormalJeffreys(group={self.group})"


@register(
    priors={"*": "Normal(0, 1)", "*weight": "GroupNormalJeffreys(group=auto)"},
    # Log-variances start at -9 (a standard deviation of 0.011) as in the published recipe.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.011),
    reference="Louizos, Ullrich and Welling (2017), Bayesian Compression for Deep Learning",
    compresses=True,
    expected_failures={
        "kl_is_exact": ExpectedFailure(
            "KL in the loss / exact KL",
            "the divergence from the improper log-uniform prior of the scales is a "
            "published approximation, and defined up to a constant",
        )
    },
)
class GroupNormalJeffreysMethod(Method):
    """Normal-Jeffreys priors on weights, standard normal priors on biases."""
