r"""Sparse variational dropout: every weight finds its own noise level, and most become noise.

Model and posterior, for every weight :math:`w_{ij}`:

.. math::
    p(w_{ij}) \propto \frac{1}{|w_{ij}|}, \qquad q(w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2), \qquad
    \alpha_{ij} = \frac{\sigma_{ij}^2}{\mu_{ij}^2}

The divergence depends on :math:`\alpha` alone. Up to a constant that is chosen to make it vanish
for pure noise, and with an error below 0.0094 nats,

.. math::
    \mathrm{KL}(\alpha) \approx k_1\, \mathrm{sigmoid}(-(k_2 + k_3 \log\alpha)) + \tfrac12 \log(1 +
    \alpha^{-1}), \quad k = (0.63576, 1.87320, 1.48695)

so a weight is either worth its price or drifts to :math:`\alpha \to \infty`. Weights with
:math:`\log\alpha > 3` are pruned, the published threshold. Biases have standard normal priors; the
paper trains them as points, as ``--bayesian '*weight'`` does.

Use it for the smallest number of weights at given accuracy. It says nothing about units: what is
left is scattered over the layer, and makes no dense network smaller unless whole units die. It
fails in three ways. Without a warm-up of the KL a large network prunes everything before it has
learned anything. The prior is improper and has no posterior in general (Hron et al. 2018), so the
ELBO has an arbitrary constant per weight: compare it only between fits of the same network. And
the approximation underestimates how unsure a pruned weight is about its sign and size: intervals
from it are too narrow away from the data. NUTS, which needs a posterior that exists, samples
the counterpart ``TruncatedNormalJeffreys(group=element)``.

Reference: Molchanov, Ashukha and Vetrov (2017), *Variational Dropout Sparsifies Deep Neural
Networks*, ICML. Hron, Matthews and Ghahramani (2018), *Variational Bayesian dropout: pitfalls and
fixes*, ICML.
"""

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)", "*weight": "LogUniform()"}


@register(
    priors=PRIORS,
    # Log-variances start at -10 as in the published recipe.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.0067),
    reference="Molchanov, Ashukha and Vetrov (2017), Variational Dropout Sparsifies Deep Neural "
    "Networks",
    truth="nuts",
    compresses=True,
    expected_failures={
        "kl_is_exact": "the divergence from the improper log-uniform prior is a published "
        "approximation, and defined up to a constant"
    },
)
def sparse_vd(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: log-uniform priors on weights, standard normal priors on biases."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
