r"""SWAG: a Gaussian with the moments of the weights along the training trajectory.

Model and posterior, with weight decay read as a prior:

.. math::
    w_i \sim N(0, 1), \qquad y_n \sim p(y \mid f_w(x_n)), \qquad
    q(w) = N\Bigl(\bar w, \tfrac12 \Bigl(\Sigma_d + \frac{D D^\top}{K - 1}\Bigr)\Bigr)

The first half of the run trains a point; the objective is the negative log joint. After that, at a
constant learning rate, every fifth update is kept as a snapshot. :math:`\bar w` is the mean of all
snapshots, :math:`\Sigma_d` the diagonal of their variances, and the :math:`K \le 20` columns of
:math:`D` are the last deviations from the running mean. Statistics of batch normalisation are those
of each draw on the training rows, as published. A positive noise is averaged as its logarithm.

Use it to give a large network a posterior for the cost of one training run, without a second pass
over the data or a Hessian. Its predictions are often better than those of the last weights.

It does not measure the width of the posterior. The spread of the snapshots depends on learning rate
and batch size, not only on the data: full-batch steps have no noise, and the posterior shrinks to a
point. The publication uses SGD with a tuned learning rate; here the snapshots are those of Adam,
which evens out the scales of the weights. In a linear regression on ``diabetes`` the standard
deviations are 0.1 to 0.6 times the exact ones with this recipe, and 0.04 to 0.1 times with batches
of 128 rows. Compare it with NUTS (``zoo truth``) on a small problem before trusting an interval. A
decaying learning rate (``--schedule linear``) narrows the posterior further. With fewer than two
snapshots (metric ``num_snapshots``) it is a point. Scale mixtures such as the horseshoe have no
mode and are rejected.

Reference: Maddox, Izmailov, Garipov, Vetrov and Wilson (2019), *A Simple Baseline for Bayesian
Uncertainty in Deep Learning*, NeurIPS.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from guides.base import Guide
from guides.swag import SwagGuide
from zoo.infer.curvature import require_independent
from zoo.models.laplace import unconstrained_parts
from zoo.models.mean_field import MeanFieldNetwork
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.priors import Options
from zoo.registry import ExpectedFailure, Recipe, register


class SwagOptions(Options):
    """Settings of the guide: which snapshots are kept."""

    start: float = Field(0.5, ge=0, lt=1, description="Fraction of the run without snapshots.")
    every: int = Field(5, ge=1, description="Number of steps between snapshots.")
    rank: int = Field(20, ge=2, le=1000, description="Columns of the low-rank part.")


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(
        num_steps=3000, batch_size=32, lr=1e-2, schedule="constant", kl_warmup=0.0, init_scale=1e-3
    ),
    reference="Maddox, Izmailov, Garipov, Vetrov and Wilson (2019), A Simple Baseline for Bayesian "
    "Uncertainty in Deep Learning",
    # The width comes from the noise of the steps.
    exactness="mean_only",
    expected_failures={
        "reaches_its_own_optimum": ExpectedFailure(
            "does not depend on the trained parameters",
            "mean and width are those of the snapshots, not of an ELBO",
        )
    },
)
class SwagMethod(Method):
    """Standard normal priors on weights and biases; a point, then the moments of its path."""

    network = MeanFieldNetwork
    options = SwagOptions
    averages: ClassVar[bool] = False  # type: ignore[misc]
    own_guide = (
        "the posterior of swag is made from snapshots. Use --option rank=40 for more correlations, "
        "or the method mean_field"
    )

    @property
    def last_phase(self) -> float:
        """Snapshots are taken after the point has converged."""
        return 1.0 - float(self.settings.start)

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return a point, started at the network's weights."""
        return SwagGuide(unconstrained_parts(model, init_scale), rank=self.settings.rank)

    def check(self, model: BNN, x: Tensor) -> None:
        """Reject priors without a mode."""
        require_independent(model)

    def after_update(self, model: BNN, guide: Guide, progress: float) -> None:
        """Take a snapshot after the initial part of the run."""
        super().after_update(model, guide, progress)
        if isinstance(guide, SwagGuide) and progress > self.settings.start:
            guide.collect(self.settings.every)

    def after_training(self, model: BNN, guide: Guide, rows: TrainingRows) -> None:
        """Turn the guide into the Gaussian of the snapshots."""
        if isinstance(guide, SwagGuide):
            guide.finish()

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: the loss is minus the log joint of a point."""
        return False
