r"""Graves' adaptive prior: mean and variance of each layer's prior follow the posterior.

Model and posterior, for the weights :math:`w_i` of one layer:

.. math::
    w_i \sim N(m, v), \qquad q(w_i) = N(\mu_i, \sigma_i^2)

With the posterior fixed, the ELBO is largest for

.. math::
    m = \frac1n \sum_i \mu_i, \quad v = \frac1n \sum_i [\sigma_i^2 + (\mu_i - m)^2], \qquad
    \mathrm{KL} = \tfrac12 \sum_i \log \frac{v}{\sigma_i^2}

and the prior takes these values before every step. Weights are pruned by the density of their
posterior at zero relative to its peak, :math:`\lambda_i = e^{-\mu_i^2 / 2\sigma_i^2} > 0.83`, that
is a mean below 0.61 standard deviations. Biases, of which a layer has few, have standard normal
priors.

Use it instead of `mean_field` when the scale of the weights is not known beforehand: it replaces
the guess N(0, 1) by two fitted numbers per layer, and it shows which weights the posterior does not
care about. It prunes far less than `sparse_vd` or `empirical_bayes`, as a shared variance makes
large weights expensive and gives no weight a reason to become noise on its own. It fails on layers
with few weights: for a single one the fitted prior *is* the posterior, the divergence is zero and
nothing is regularised. The ELBO is no bound on the evidence of a fixed prior, and a truth by NUTS
conditions on the fitted one.

Reference: Graves (2011), *Practical Variational Inference for Neural Networks*, NIPS.
"""

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)", "*weight": "Graves()"}


@register(
    priors=PRIORS,
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Graves (2011), Practical Variational Inference for Neural Networks",
    truth="exact",
    compresses=True,
)
def graves(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: fitted normal priors on weights, standard normal priors on biases."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
