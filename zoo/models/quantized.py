r"""Variational network quantization: weights end on a few code words, by default three.

Model and posterior, for every weight :math:`w_{ij}` of a layer with code words
:math:`s c_k \in \{-a, 0, a\}`:

.. math::
    p(w_{ij}) \propto \sum_k \frac{1}{|w_{ij} - s c_k|}, \qquad
    q(w_{ij}) = N(\theta_{ij}, \sigma_{ij}^2)

The divergence from one spike is that of a log-uniform prior, :math:`\mathrm{KL}_{LU}`; from all of
them it is approximated by windows :math:`\Omega(t) = e^{-t^2 / 2\tau^2}`, :math:`\tau = 0.375\,a`:

.. math::
    \mathrm{KL} \approx \sum_{k: c_k \ne 0} \Omega(\theta - s c_k)
    \mathrm{KL}_{LU}(\theta - s c_k, \sigma)
    + \Bigl[1 - \sum_{k: c_k \ne 0} \Omega(\theta - s c_k)\Bigr] \mathrm{KL}_{LU}(\theta, \sigma)

The site is :math:`w / s`, whose code words do not move, so the divergence does not depend on
:math:`s` and the likelihood alone decides it. These are other coordinates of the published
objective: a weight that has found its code word stays on it while :math:`s` changes, and :math:`s`
is learned as fast as the weights, where the published recipe has it a hundred times slower.

The network is pretrained without the divergence. Then :math:`s` is put where the code words are
nearest to the weights of each layer, and the weight of the divergence rises to one. After the fit a
weight with :math:`\log(\sigma^2 / \theta^2) \ge 3` becomes zero and any other its nearest code
word: ``Fit.quantize()`` returns that network, and its scores stand beside those of the continuous
one. Biases have standard normal priors and keep their precision.

Use it to store a network in two bits per weight, or to see how much precision it needs. Another
codebook is one prior away: ``--prior '*.weight=Quantizing([-2, -1, 0, 1, 2], size=fitted)'`` fits
five words, ``size=fixed`` takes words as given. A network that is pretrained already needs
``--pretrain 0``.

It is a regulariser rather than a posterior: the prior is improper, so there is no evidence, and the
divergence is an approximation that is up to 1.07 nats per weight below the exact one, worst on the
code words. Uncertainties are those of weights that were pulled to code words and are not to be
trusted. A codebook that is too coarse, a warm-up that is too short or too few steps show in the
quantized network alone, which is why both are scored. Convolutional networks can drown in noise
that the divergence buys: ``max_sd=0.1`` bounds it.

Reference: Achterhold, Köhler, Schmeink and Genewein (2018), *Variational Network Quantization*,
ICLR.
"""

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)", "*weight": "Quantizing(codebook=[-0.2, 0, 0.2], size=fitted)"}


@register(
    priors=PRIORS,
    # As published: log-variances start at -8 (a standard deviation of 0.018) at a codebook of 0.2,
    # the learning rate falls linearly to zero.
    recipe=Recipe(
        num_steps=4000,
        batch_size=128,
        lr=2e-3,
        schedule="linear",
        pretrain=0.15,
        kl_warmup=0.25,
        init_scale=0.0183,
    ),
    reference="Achterhold, Köhler, Schmeink and Genewein (2018), Variational Network Quantization",
    exactness="mean_field",
    truth="brute_force",
    analytic_kl=True,
    expected_failures={
        "kl_is_exact": "the divergence is the published approximation of an improper prior's",
    },
)
def quantized(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: a codebook for the weights of each layer, normal priors on biases."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
