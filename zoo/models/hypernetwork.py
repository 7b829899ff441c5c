r"""Hypernetwork: a single training run gives a posterior for every weight of the KL term.

The objective of a variational fit with a weight :math:`\lambda` on the divergence,

.. math::
    L(q, \lambda) = E_q \log p(D \mid w) - \lambda\, \mathrm{KL}(q \| p), \qquad w_i \sim N(0, 1),

trades accuracy for simplicity: with a larger :math:`\lambda` more weights stay at the prior and can
be removed. Its optimum is the posterior of the tempered model :math:`p(D \mid w)^{1/\lambda} p(w)`.
Here :math:`q(w \mid \lambda) = N(\mu(\lambda), \sigma^2(\lambda))` is trained for all
:math:`\lambda` at once,

.. math::
    \max\; E_\lambda\, L(q(\cdot \mid \lambda), \lambda), \qquad
    \log_{10} \lambda \sim U(-3, 2)

with a new :math:`\lambda` at every step. Means and log standard deviations are piecewise linear in
:math:`e = (\log_{10} \lambda + 3) / 5`, with one knot per decade; ``--option knots=2`` makes them
linear. Whatever the priors are, every parameter of their guides becomes such a function, including
those of structure: with ``--prior '*.structure=GumbelSoftmaxStructure(points=vertices,
penalty=0.5)'`` a graph network has an architecture :math:`\gamma(\lambda)`, and each expected
parameter costs :math:`0.5 \lambda`.

Outside of training :math:`\lambda` is one, where the objective is the ELBO, unless another one is
requested: ``fit.at(0.3)``, ``zoo compress RUN --complexity 0.3``. Weights are pruned as in
`graves`, by :math:`e^{-\mu^2 / 2\sigma^2} > 0.83`.

Use it to choose the size of a network after training, or to get a curve of accuracy against size
for about the cost of one training run. For a single :math:`\lambda` known in advance `mean_field`
or `graves` are cheaper and no worse: a hypernetwork has six times as many parameters, and each knot
is trained by a part of the steps. It is least accurate where the optimal posterior changes quickly
between knots, which is where the network collapses to the prior; with two knots it cannot follow
such a change at all.

Reference: Grebenkova, Bakhteev and Strijov (2021), *Variational Deep Learning Model Optimization
with Complexity Control*.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from guides.base import Guide
from guides.graves import GravesGuide
from guides.hypernetwork import Complexity, HypernetworkGuide
from zoo.errors import PriorError
from zoo.network.bnn import BNN
from zoo.network.method import Method
from zoo.priors import Options
from zoo.registry import ExpectedFailure, Recipe, register


class HypernetworkOptions(Options):
    """Settings of the guide."""

    knots: int = Field(
        6,
        ge=2,
        le=1000,
        description="Knots of the piecewise linear functions of the log weight: 6 for one per "
        "decade, 2 for linear functions.",
    )


class HypernetworkNetwork(BNN):
    """A network whose divergence has a random weight during training."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.complexity = Complexity().to(next(self.net.parameters()))

    def use(self, method: Method, settings: Mapping[str, Options]) -> None:
        """Set the method; options may bound a posterior, which is rejected."""
        super().use(method, settings)
        for name in self.slots:
            if self.prior(name).is_bounded:
                raise PriorError(
                    f"the prior {self.priors[name]} of slot {name!r} bounds its posterior, "
                    "which a hypernetwork cannot follow. Use another one, such as Normal(0, 1)."
                )

    def sample_slots(self) -> dict[str, Tensor]:
        r"""Sample :math:`\lambda`, then every slot from a prior with that weight."""
        e = self.complexity.position()
        with self.complexity.weighted(e):
            return super().sample_slots()


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(num_steps=6000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Grebenkova, Bakhteev and Strijov (2021), Variational Deep Learning Model "
    "Optimization with Complexity Control",
    exactness="mean_only",
    compresses=True,
    expected_failures={
        "recovers_linear_regression": ExpectedFailure(
            "means within",
            "posteriors between two knots are interpolated: even after convergence means are 2% "
            "off at the weight one",
        )
    },
)
class HypernetworkMethod(Method):
    """Standard normal priors on weights and biases, and a posterior for every complexity."""

    network = HypernetworkNetwork
    options = HypernetworkOptions
    own_guide = "a hypernetwork has a guide of its own"

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return posteriors that are piecewise linear in the log of the weight."""
        assert isinstance(model, HypernetworkNetwork)
        return HypernetworkGuide(
            {name: _part(model, name, init_scale) for name in model.slots},
            complexity=Complexity().to(model.complexity.chosen),
            num_knots=self.settings.knots,
        )

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: the loss is averaged over weights of the divergence."""
        return False


def _part(model: BNN, name: str, init_scale: float) -> Guide:
    """Return the guide of one slot; weights with normal priors are pruned as in `graves`."""
    slot, prior = model.slots[name], model.prior(name)
    if prior.normal() is not None and len(slot.shape) > 1 and not prior.is_fitted:
        return GravesGuide(name, slot.value, init_scale=init_scale)
    return model.prior(name).guide(init_scale)
