r"""Structured Bayesian pruning: multiplicative noise says which units and filters can be removed.

What enters a layer is multiplied unit by unit (channel by channel for a convolution). The weights
are points, trained by maximum likelihood; the multipliers are random:

.. math::
    y_i = \theta_i x_i, \qquad \log\theta_i \sim \mathrm{Uniform}(a, b), \qquad
    q(\log\theta_i) = N(\mu_i, \sigma_i^2) \text{ truncated to } [a, b]

with :math:`a = -20` and :math:`b = 0`. With :math:`\alpha = (a - \mu)/\sigma`, :math:`\beta = (b -
\mu)/\sigma` and :math:`Z = \Phi(\beta) - \Phi(\alpha)`,

.. math::
    \mathrm{KL} = \log(b - a) - \log(\sigma Z) - \tfrac12 \log(2\pi e)
        - \frac{\alpha\phi(\alpha) - \beta\phi(\beta)}{2 Z}

A unit is kept if the signal-to-noise ratio :math:`E\theta / \sqrt{V\theta}` is above one. The
multiplier stands behind the nonlinearity, so a unit that is removed has said nothing but zero. One
draw of the multipliers serves a whole batch, as in the published training.

Use it to make a network smaller by whole units, inputs among them, at little cost in accuracy.
Another place is a matter of patterns: ``--prior '2.output=LogUniformNoise()'`` adds noise behind
module 2, ``--bayesian '2.input'`` leaves no other noise than that. ``--prior
'0.input=LogUniformNoise(kl_scale=10)'`` weighs the divergence of a layer ten times (the variant
called SBPa, with 10 and 5 for early convolutions): it prunes harder, and the objective is no longer
a bound on the evidence.

It fails, or means little, in these cases. The weights have no prior, so they can overfit and the
uncertainty of a prediction is that of the multipliers alone; do not read it as that of a Bayesian
network. From its quiet start it learns shuffled labels by heart, and the objective is better for
it; a loud one, ``--init-scale 1 --kl-warmup 0``, lets nothing through that the noise would drown.
The weights can grow to make up for small multipliers, since nothing holds them back. Noise
in front of batch normalisation is divided out again: place it behind. From an untrained network and
with the full divergence from the first step on, all units can be lost before anything is learned;
the recipe phases it in. A unit at the lower bound has a steady multiplier of almost nothing and a
ratio above one; it is removed by a second rule, on the mean, which is ours.

Reference: Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via
Log-Normal Multiplicative Noise*, NIPS.
"""

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import Recipe, register

PRIORS = {"*.input": "LogUniformNoise(low=-20, high=0)"}


@register(
    priors=PRIORS,
    # The multipliers start as good as fixed at one (a log standard deviation of -5).
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.0067),
    reference="Neklyudov, Molchanov, Ashukha and Vetrov (2017), Structured Bayesian Pruning via "
    "Log-Normal Multiplicative Noise",
    exactness="mean_field",
    truth="nuts",
    analytic_kl=True,
    compresses=True,
)
def structured_bp(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: log-uniform multipliers of the inputs of every layer, weights as points."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
