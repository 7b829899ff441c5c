r"""Bayesian compression with a group horseshoe: whole units and filters are switched off.

Per layer, with groups :math:`i` (input units of a linear layer, output channels of a convolution):

.. math::
    s \sim C^+(0, \tau_0), \quad \tilde z_i \sim C^+(0, 1), \quad \tilde w_{ij} \sim N(0, 1), \quad
    w_{ij} = \tilde w_{ij} \tilde z_i s

Each half-Cauchy is a Gamma times an inverse Gamma, :math:`\tilde z_i^2 = \tilde\alpha_i
\tilde\beta_i` with :math:`\tilde\alpha_i \sim \mathrm{Gamma}(\frac12, 1)`, :math:`\tilde\beta_i
\sim \mathrm{InvGamma}(\frac12, 1)`, and :math:`s^2 = s_a s_b` likewise with :math:`s_a \sim
\mathrm{Gamma}(\frac12, \text{scale}=\tau_0^2)`. The posterior is log-normal for each scale and
Gaussian for each :math:`\tilde w_{ij}`, so every divergence has a closed form. Biases have
standard normal priors.

Use it to find out how much of a network is needed, and to remove the rest. The default
:math:`\tau_0 = 10^{-5}` is the published one and prunes hard; raise it with
``--prior '*.weight=Horseshoe(scale=0.1)'`` when accuracy matters more than size.

Reference: Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*, NIPS.
"""

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)", "*weight": "Horseshoe(scale=1e-5, group=auto)"}


@register(
    priors=PRIORS,
    # Log-variances start at -9 (a standard deviation of 0.011) as in the published recipe: training
    # begins as a deterministic network and the KL is phased in.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.011),
    reference="Louizos, Ullrich and Welling (2017), Bayesian Compression for Deep Learning",
    exactness="mean_field",
    truth="brute_force",
    analytic_kl=True,
    compresses=True,
)
def group_horseshoe(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: horseshoe priors on weights, standard normal priors on biases."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
