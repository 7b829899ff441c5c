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

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)", "*weight": "NormalJeffreys(group=auto)"}


@register(
    priors=PRIORS,
    # Log-variances start at -9 (a standard deviation of 0.011) as in the published recipe.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.011),
    reference="Louizos, Ullrich and Welling (2017), Bayesian Compression for Deep Learning",
    truth="nuts",
    compresses=True,
    expected_failures={
        "kl_is_exact": "the divergence from the improper log-uniform prior of the scales is a "
        "published approximation, and defined up to a constant"
    },
)
def group_normal_jeffreys(
    net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]
) -> BNN:
    """Build the model: normal-Jeffreys priors on weights, standard normal priors on biases."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
