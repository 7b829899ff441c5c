r"""SWAG: the weights that training passes through, read as draws of a Gaussian.

Model and posterior, with weight decay read as a prior:

.. math::
    w_i \sim N(0, 1), \qquad y_n \sim p(y \mid f_w(x_n)), \qquad
    q(w) = N\Bigl(\bar w, \tfrac12 \Bigl(\Sigma_d + \frac{D D^\top}{K - 1}\Bigr)\Bigr)

The first half of the run trains a point, so that the objective is the negative log joint. From then
on, at a constant learning rate, every fifth update leaves a snapshot. :math:`\bar w` is the mean of
all snapshots, :math:`\Sigma_d` the diagonal of their variances, and the :math:`K \le 20` columns of
:math:`D` are the last deviations from the running mean. A draw is

.. math::
    w = \bar w + \tfrac{1}{\sqrt 2} \Sigma_d^{1/2} z_1 + \tfrac{1}{\sqrt{2 (K - 1)}} D z_2, \qquad
    z_1, z_2 \sim N(0, I)

``--option start=0.75``, ``--option every=20`` and ``--option rank=40`` change the fraction of the
run without snapshots, the steps between two of them and the number of columns. Statistics of batch
normalisation are those of each draw on the training rows, as published. A positive noise is
averaged as its logarithm.

Use it to give a large network a posterior at the cost of training it once: no second pass over the
data, no Hessian, and predictions that are often better than those of the last weights.

It fails as a measurement of the posterior's width. How far the weights wander depends on learning
rate and batch size, not on the data alone: steps that see all rows have no noise, and the
posterior shrinks to a point. The publication takes SGD with a tuned learning rate; here the
snapshots are those of Adam, which evens out the scales of the weights. In a linear regression on
``diabetes`` the standard deviations are 0.1 to 0.6 times the exact ones with this recipe, and 0.04
to 0.1 times with batches of 128 rows. Compare it with NUTS (``zoo truth``) on a small problem
before trusting an interval. A decaying learning rate
(``--schedule linear``) narrows the posterior further. With fewer than two snapshots, the metric
``num_snapshots``, it is a point. Scale mixtures such as the horseshoe have no mode and are refused.

Reference: Maddox, Izmailov, Garipov, Vetrov and Wilson (2019), *A Simple Baseline for Bayesian
Uncertainty in Deep Learning*, NeurIPS.
"""

import pyro
from pydantic import Field
from torch import Tensor

from guides.base import Guide
from guides.swag import SwagGuide
from zoo.errors import ConfigError
from zoo.infer.curvature import require_independent
from zoo.models.laplace import unconstrained_parts
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.priors import Options
from zoo.priors.plain import PlainPrior
from zoo.registry import ExpectedFailure, Recipe, register


class SwagOptions(Options):
    """Settings of the guide: which snapshots it keeps."""

    start: float = Field(0.5, ge=0, lt=1, description="Fraction of the run without snapshots.")
    every: int = Field(5, ge=1, description="Steps between two snapshots.")
    rank: int = Field(20, ge=2, le=1000, description="Columns of the low-rank part.")


class SwagNetwork(BNN):
    """A network with independent weights."""

    def sample_slots(self) -> dict[str, Tensor]:
        r"""Draw every weight, :math:`w_i \sim N(0, 1)` or another independent prior."""
        weights = {}
        for name in self.slots:
            prior = self.prior(name)
            if not isinstance(prior, PlainPrior):  # refused before training
                return super().sample_slots()
            weights[name] = pyro.sample(name, prior.distribution())
        return weights


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(
        num_steps=3000,
        batch_size=32,
        lr=1e-2,
        schedule="constant",
        kl_warmup=0.0,
        init_scale=1e-3,
    ),
    reference="Maddox, Izmailov, Garipov, Vetrov and Wilson (2019), A Simple Baseline for Bayesian "
    "Uncertainty in Deep Learning",
    # The width comes from the noise of the steps, not from the posterior.
    exactness="mean_only",
    analytic_kl=True,
    expected_failures={
        "reaches_its_own_optimum": ExpectedFailure(
            "does not depend on the trained parameters",
            "mean and width are those of the snapshots, not of an ELBO",
        ),
    },
)
class SwagMethod(Method):
    """Standard normal priors on every weight and bias; a point, then the moments of its path."""

    network = SwagNetwork
    options = SwagOptions

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return a point that starts at the network's weights."""
        return SwagGuide(unconstrained_parts(model, init_scale), rank=self.settings.rank)

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Refuse: the snapshots decide the correlations."""
        raise ConfigError(
            "the method 'swag' takes no guide 'full_rank': its posterior is made from snapshots. "
            "Use --option rank=40 for more correlations, or the method mean_field."
        )

    def check(self, model: BNN, x: Tensor) -> None:
        """Refuse priors without a mode."""
        require_independent(model)

    def after_update(self, model: BNN, guide: Guide, progress: float) -> None:
        """Take a snapshot, once the point has been trained."""
        super().after_update(model, guide, progress)
        if isinstance(guide, SwagGuide) and progress > self.settings.start:
            guide.collect(self.settings.every)

    def after_training(self, model: BNN, guide: Guide, rows: TrainingRows) -> None:
        """Make the snapshots the posterior."""
        if isinstance(guide, SwagGuide):
            guide.finish()

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: it is minus the log joint of a point."""
        return False
