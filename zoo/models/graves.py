r"""Graves' adaptive prior: mean and variance of each layer's prior follow the posterior.

Model and posterior, for the weights :math:`w_i` of one layer:

.. math::
    w_i \sim N(m, v), \qquad q(w_i) = N(\mu_i, \sigma_i^2)

For a fixed posterior the ELBO is maximal at

.. math::
    m = \frac1n \sum_i \mu_i, \quad v = \frac1n \sum_i [\sigma_i^2 + (\mu_i - m)^2], \qquad
    \mathrm{KL} = \tfrac12 \sum_i \log \frac{v}{\sigma_i^2}

and the prior takes these values after every step. Weights are pruned by the posterior density at
zero relative to its peak, :math:`\lambda_i = e^{-\mu_i^2 / 2\sigma_i^2} > 0.83`, which is a mean
below 0.61 standard deviations. Biases, of which a layer has few, have standard normal priors.

Use it instead of `mean_field` when the scale of the weights is not known in advance. It replaces
the guess N(0, 1) by two fitted numbers per layer and shows which weights are irrelevant. It prunes
far less than `sparse_vd` or `empirical_bayes`: with a shared variance large weights are expensive,
and no weight gains by becoming noise.

It fails on layers with few weights. For a single weight the fitted prior *is* the posterior, the
divergence is zero and nothing is regularised. The ELBO is no bound on the evidence of a fixed
prior, and NUTS conditions on the fitted one.

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
    """Normal prior whose mean and variance follow the posterior; standard normal until then."""

    prior_loc: Tensor
    prior_scale: Tensor

    def setup(self) -> None:
        """Make buffers for mean and standard deviation."""
        self.register_buffer("prior_loc", self.slot.value.new_zeros(()))
        self.register_buffer("prior_scale", self.slot.value.new_ones(()))

    def model(self) -> Tensor:
        """Sample the weights."""
        weights: Tensor = pyro.sample(self.slot.name, self.elements(self.normal()))
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Return a Gaussian guide, which the prior follows."""
        return GravesGuide(self.slot.name, self.slot.value, init_scale=init_scale)

    @torch.no_grad()
    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Take the optimal mean and standard deviation, one of each for all weights."""
        mean, variance = graves_prior(loc, scale)
        self.prior_loc.copy_(mean)
        self.prior_scale.copy_(variance.sqrt())

    def normal(self) -> Normal:
        """Return the fitted normal."""
        return Normal(self.prior_loc, self.prior_scale)


@register(
    priors={"*": "Normal(0, 1)", "*weight": "Graves()"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Graves (2011), Practical Variational Inference for Neural Networks",
    compresses=True,
)
class GravesMethod(Method):
    """Fitted normal priors on weights, standard normal priors on biases."""
