r"""Variational dropout: Gaussian dropout whose rates are learned instead of tuned.

What enters a layer is multiplied unit by unit (channel by channel for a convolution) by Gaussian
noise. The weights are points, trained by maximum likelihood; the noise has a log-uniform prior, and
its variance :math:`\alpha` is learned, one for each layer:

.. math::
    y_i = s_i x_i, \qquad p(s_i) \propto |s_i|^{-1}, \qquad q(s_i) = N(1, \alpha), \quad
    0 < \alpha \le 1

.. math::
    \mathrm{KL}(\alpha) = u\, {}_2F_2(1, 1; \tfrac32, 2; -u), \quad u = \frac{1}{2\alpha}, \qquad
    \approx k_1\, \mathrm{sigmoid}(-k_2 - k_3 \log\alpha) + \tfrac12 \log(1 + \alpha^{-1})

The loss has the approximation, whose error is below 0.01 nats; the constant of the improper prior
is such that the KL vanishes for :math:`\alpha \to \infty`. A rate :math:`p` of Bernoulli dropout
corresponds to :math:`\alpha = p / (1 - p)`. In training every row has noise of its own; a posterior
draw is one function, with the same noise for all rows.

The prior is on the noise and not on the weights: the weights that leave one unit share its noise,
so as a posterior of the weights it would be degenerate, with an infinite KL. The version with
independent noise on each weight, :math:`q(w_{ij}) = N(\mu_{ij}, \alpha\mu_{ij}^2)` under
:math:`p(w) \propto |w|^{-1}`, is had by ``--bayesian '*.weight' --prior
'*.weight=GaussianDropout(share=layer)'``. Rates are shared by a ``layer``, a ``unit`` or nothing
(``element``); with ``GaussianDropout(p=0.3, share=fixed)`` they stay where they are, which is
Gaussian dropout.

Use it where dropout is used, to be spared the search for its rate. It does not remove anything:
rates end at a half. It fails, or means little, in these cases. Under the improper prior the
posterior does not exist (Hron, Matthews and Ghahramani, 2018), so the ELBO is no bound on an
evidence, only differences of it mean something, and NUTS needs the proper ``SmoothLogUniform``.
The KL falls with :math:`\alpha` whatever the data say: with many units or weights and few rows the
rates run to their bound, most of all with one KL term for each weight, and the fit is too smooth.
The noise has a fixed shape, so the uncertainty away from the data is that of the network's
extrapolation and no more.

Reference: Kingma, Salimans and Welling (2015), *Variational Dropout and the Local
Reparameterization Trick*, NIPS.
"""

from typing import Unpack

from torch import nn

from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.registry import SMALL_PROBLEM, Recipe, register

PRIORS = {"*.input": "GaussianDropout(p=0.2, max_p=0.5, share=layer)"}


@register(
    priors=PRIORS,
    recipe=Recipe(num_steps=3000, batch_size=128, lr=3e-3, kl_warmup=0.0),
    reference="Kingma, Salimans and Welling (2015), Variational Dropout and the Local "
    "Reparameterization Trick",
    exactness="mean_field",
    truth="nuts",
    # NUTS needs a proper prior: between e^-8 and e^2 this one is log-uniform as well.
    small_problem=SMALL_PROBLEM | {"priors": {"*.input": "SmoothLogUniform(-8, 2)"}},
    analytic_kl=True,
    expected_failures={
        "kl_is_exact": "the log-uniform prior is improper: its KL is known up to a constant"
    },
)
def variational_dropout(
    net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]
) -> BNN:
    """Build the model: Gaussian noise on the inputs of every layer, weights as points."""
    return BNN(net, likelihood, default_priors=PRIORS, **options)
