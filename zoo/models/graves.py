r"""Graves' adaptive prior: mean and variance of each layer's prior follow the posterior.

Model and posterior, for the weights :math:`w_i` of one layer:

.. math::
    w_i \sim N(m, v), \qquad q(w_i) = N(\mu_i, \sigma_i^2)

With the posterior fixed, the ELBO is largest for

.. math::
    m = \frac1n \sum_i \mu_i, \quad v = \frac1n \sum_i [\sigma_i^2 + (\mu_i - m)^2], \qquad
    \mathrm{KL} = \tfrac12 \sum_i \log \frac{v}{\sigma_i^2}

and the prior takes these values after every step. Weights are pruned by the density of their
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

import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor

from guides.base import Guide
from guides.graves import GravesGuide
from zoo.distributions import graves_prior
from zoo.network.method import Method
from zoo.priors.slot_prior import FittedPrior
from zoo.registry import Recipe, register


class Graves(FittedPrior):
    r"""A normal prior whose mean and variance are fitted to the posterior, one of each per slot.

    .. math:: w_i \sim N(m, v), \quad m = \frac1n \sum_i \mu_i, \quad
        v = \frac1n \sum_i [\sigma_i^2 + (\mu_i - m)^2]

    Until it is fitted it is standard normal.

    References
    ----------
    Graves (2011), *Practical Variational Inference for Neural Networks*.
    """

    prior_loc: Tensor
    prior_scale: Tensor

    def setup(self) -> None:
        """Make mean and standard deviation."""
        self.register_buffer("prior_loc", self.slot.value.new_zeros(()))
        self.register_buffer("prior_scale", self.slot.value.new_ones(()))

    def model(self) -> Tensor:
        """Sample the weights."""
        weights: Tensor = pyro.sample(self.slot.name, self.elements(self.normal()))
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Gaussian weights, which the prior follows."""
        return GravesGuide(self.slot.name, self.slot.value, init_scale=init_scale)

    @torch.no_grad()
    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Take the mean and the spread of all weights together."""
        mean, variance = graves_prior(loc, scale)
        self.prior_loc.copy_(mean)
        self.prior_scale.copy_(variance.sqrt())

    def normal(self) -> Normal:
        """Return the normal that fits best."""
        return Normal(self.prior_loc, self.prior_scale)


@register(
    priors={"*": "Normal(0, 1)", "*weight": "Graves()"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Graves (2011), Practical Variational Inference for Neural Networks",
    compresses=True,
)
class GravesMethod(Method):
    """Fitted normal priors on weights, standard normal priors on biases."""
