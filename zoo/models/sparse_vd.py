r"""Sparse variational dropout: every weight finds its own noise level, and most become noise.

Model and posterior, for every weight :math:`w_{ij}`:

.. math::
    p(w_{ij}) \propto \frac{1}{|w_{ij}|}, \qquad q(w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2), \qquad
    \alpha_{ij} = \frac{\sigma_{ij}^2}{\mu_{ij}^2}

The prior is scale-invariant, so the divergence depends on :math:`\alpha` alone. Up to a constant
chosen to make it vanish for pure noise, and with an error below 0.0094 nats,

.. math::
    \mathrm{KL}(\alpha) \approx k_1\, \mathrm{sigmoid}(-(k_2 + k_3 \log\alpha)) + \tfrac12 \log(1 +
    \alpha^{-1}), \quad k = (0.63576, 1.87320, 1.48695)

A weight that does not improve the likelihood enough drifts to :math:`\alpha \to \infty`. Weights
with :math:`\log\alpha > 3`, the published threshold, are pruned. Biases have standard normal
priors; the paper trains them as points, as does ``--bayesian '*weight'``.

Use it for the smallest number of weights at a given accuracy. It does not prune units: the
remaining weights are scattered over the layer, and the dense network becomes smaller only where all
weights of a unit are pruned.

Without KL warm-up a large network prunes everything before it has learned anything. The prior is
improper and the posterior does not exist in general (Hron et al. 2018), so the ELBO has an
arbitrary constant per weight; compare it only between fits of the same network. The approximation
underestimates the uncertainty of a pruned weight about its sign and size, so intervals are too
narrow away from the data. NUTS needs a proper posterior and samples the counterpart
``TruncatedNormalJeffreys(group=element)``.

Reference: Molchanov, Ashukha and Vetrov (2017), *Variational Dropout Sparsifies Deep Neural
Networks*, ICML. Hron, Matthews and Ghahramani (2018), *Variational Bayesian dropout: pitfalls and
fixes*, ICML.
"""

from typing import ClassVar

import pyro
from torch import Tensor

from guides.base import Guide
from guides.sparse_vd import SparseVDGuide
from zoo.distributions import LogUniform
from zoo.network.method import Method
from zoo.priors import SlotPrior
from zoo.registry import ExpectedFailure, Recipe, register


class SparseVD(SlotPrior):
    """Log-uniform prior on every weight. It is improper and cannot be sampled."""

    is_improper: ClassVar[bool] = True
    makes_noise: ClassVar[bool] = True
    old_names: ClassVar[tuple[str, ...]] = ("LogUniform",)

    def model(self) -> Tensor:
        """Sample the weights."""
        weights: Tensor = pyro.sample(self.slot.name, self.elements(LogUniform()))
        return weights

    def guide(self, init_scale: float) -> Guide:
        """Return Gaussian weights, pruned by their ratio of noise to signal."""
        return SparseVDGuide(self.slot.name, self.slot.value, init_scale=init_scale)

    def proper(self) -> str:
        """Return the prior with a scale per weight, bounded on both sides."""
        return "TruncatedNormalJeffreys(group=element)"


@register(
    priors={"*": "Normal(0, 1)", "*weight": "SparseVD()"},
    # Log-variances start at -10 as in the published recipe.
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.0067),
    reference="Molchanov, Ashukha and Vetrov (2017), Variational Dropout Sparsifies Deep Neural "
    "Networks",
    compresses=True,
    expected_failures={
        "kl_is_exact": ExpectedFailure(
            "KL in the loss / exact KL",
            "the divergence from the improper log-uniform prior is a published "
            "approximation, and defined up to a constant",
        )
    },
)
class SparseVDMethod(Method):
    """Log-uniform priors on weights, standard normal priors on biases."""
