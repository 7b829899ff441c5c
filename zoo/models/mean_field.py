r"""Independent Gaussian posteriors: the baseline of Bayesian deep learning.

Model and posterior, for every weight :math:`w_i` of the network :math:`f_w`:

.. math::
    w_i \sim N(0, 1), \qquad y_n \sim p(y \mid f_w(x_n)), \qquad q(w_i) = N(\mu_i, \sigma_i^2)

.. math::
    \mathrm{KL}(q \| p) = \sum_i \tfrac12 (\sigma_i^2 + \mu_i^2 - \log \sigma_i^2 - 1)

Use it first, and as the baseline for the other methods. It is exact for the means of a linear
model. Its standard deviations are those of the best factorised posterior, which are too small where
weights are correlated. On wide networks a standard normal prior is strong: the posterior of many
weights stays at the prior, and the fit is smoother than a point estimate of the same network.

Reference: Graves (2011), *Practical Variational Inference for Neural Networks*, NIPS.
"""

import pyro
from torch import Tensor

from zoo.network.bnn import BNN
from zoo.network.method import Method
from zoo.priors.plain import PlainPrior
from zoo.registry import Recipe, register


class MeanFieldNetwork(BNN):
    """A network with independent weights, also the model of `laplace`, `swag` and `evidence`."""

    def sample_slots(self) -> dict[str, Tensor]:
        """Sample every weight from its prior; a prior of several sites runs its own model."""
        weights = {}
        for name in self.slots:
            prior = self.prior(name)
            if isinstance(prior, PlainPrior):
                weights[name] = pyro.sample(name, prior.distribution())
            else:
                weights[name] = prior()
        return weights


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Graves (2011), Practical Variational Inference for Neural Networks",
)
class MeanFieldMethod(Method):
    """Standard normal priors on every weight and bias; the guide is `guides.mean_field`."""

    network = MeanFieldNetwork
