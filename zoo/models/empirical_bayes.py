r"""Empirical Bayes: the prior variance of every weight is learned from the data, in closed form.

Model and posterior, for every weight and bias :math:`w_k`:

.. math::
    w_k \sim N(0, s_k^2), \qquad q(w_k) = N(\mu_k, \sigma_k^2), \qquad
    \sigma_k = \log(1 + e^{\rho_k}), \quad \mu_k = \gamma_k \sigma_k

The ELBO is maximal at :math:`s_k^2 = \sigma_k^2 + \mu_k^2`, where the divergence is

.. math:: \mathrm{KL} = \tfrac12 \sum_k \log(1 + \gamma_k^2)

This is the divergence of `sparse_vd` without its sigmoid term. Given a single observation
:math:`\hat w \sim N(w, s^2)`, the weight is kept if :math:`\hat w^2 > s^2` and switched off
otherwise. Weights are pruned as in `sparse_vd`, where :math:`\log\alpha_k = -2 \log|\gamma_k| > 3`.

Use it like `sparse_vd` when the prior should be proper: after the fit it is a normal with known
variances, so prior draws, NUTS and exact answers are available.

There is a hyper-parameter for every weight, fitted to the same data. The ELBO is therefore no bound
on the evidence of a model chosen in advance, and nothing guarantees against overfitting.
Uncertainty about the prior is ignored; NUTS conditions on the fitted variances as well. The
divergence does not change when the mean and the standard deviation of a weight shrink together, so
an irrelevant weight is pulled to zero only because its noise disturbs the outputs. The mean of a
weight moves with its standard deviation, so training is stiff where :math:`\gamma` is large: means
converge early, standard deviations late. Deep networks can collapse; keep the KL warm-up.

Reference: Kharitonov, Molchanov and Vetrov (2018), *Variational Dropout via Empirical Bayes*.
Titsias and Lázaro-Gredilla (2014), *Doubly Stochastic Variational Bayes for non-Conjugate
Inference*, ICML.
"""

import pyro
import torch
from torch import Tensor

from guides.base import Guide
from guides.empirical_bayes import EmpiricalBayesGuide
from zoo.distributions import EmpiricalBayesNormal
from zoo.network.method import Method
from zoo.priors.slot_prior import FittedPrior
from zoo.registry import Recipe, register


class EmpiricalBayes(FittedPrior):
    """Normal prior whose variances follow the posterior; standard normal until then."""

    guide_loc: Tensor
    guide_scale: Tensor

    def setup(self) -> None:
        """Make buffers for the posterior moments that determine the variances."""
        self.register_buffer("guide_loc", torch.zeros_like(self.slot.value))
        self.register_buffer("guide_scale", torch.ones_like(self.slot.value))

    def model(self) -> Tensor:
        """Sample the weights."""
        weights: Tensor = pyro.sample(self.slot.name, self.elements(self.normal()))
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Return a Gaussian guide, which the prior follows."""
        return EmpiricalBayesGuide(self.slot.name, self.slot.value, init_scale=init_scale)

    @torch.no_grad()
    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Copy the moments of the posterior."""
        self.guide_loc.copy_(loc)
        self.guide_scale.copy_(scale)

    def normal(self) -> EmpiricalBayesNormal:
        """Return the normal with the optimal variances."""
        return EmpiricalBayesNormal(self.guide_loc, self.guide_scale)


@register(
    priors={"*": "EmpiricalBayes()"},
    # A step of gamma moves the mean by that many standard deviations: a small scale is slow.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=2e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Kharitonov, Molchanov and Vetrov (2018), Variational Dropout via Empirical Bayes",
    compresses=True,
)
class EmpiricalBayesMethod(Method):
    """Normal priors with fitted variances on every weight and bias."""
