r"""A hypernetwork: one training, and a network for every weight of the complexity.

The objective of a variational fit, with a weight :math:`\lambda` on the divergence,

.. math::
    L(q, \lambda) = E_q \log p(D \mid w) - \lambda\, \mathrm{KL}(q \| p), \qquad w_i \sim N(0, 1),

trades accuracy for simplicity: the larger :math:`\lambda`, the more weights stay at the prior and
can be removed. The best posterior is that of the tempered model :math:`p(D \mid w)^{1/\lambda}
p(w)`. Here :math:`q(w \mid \lambda) = N(\mu(\lambda), \sigma^2(\lambda))` is trained for all of
them at once,

.. math::
    \max\; E_\lambda\, L(q(\cdot \mid \lambda), \lambda), \qquad
    \log_{10} \lambda \sim U(-3, 2)

with a new :math:`\lambda` at every step. Means and log standard deviations are piecewise linear in
:math:`e = (\log_{10} \lambda + 3) / 5`, with one knot per decade; ``--option knots=2`` makes them
linear, :math:`C + D e`. Whatever the priors are, every parameter of their guides becomes such a
function; structure as well, so that ``--prior '*.structure=GumbelSoftmaxStructure(points=vertices,
penalty=0.5)'`` on a graph network gives an architecture :math:`\gamma(\lambda)` whose expected
number of parameters costs :math:`0.5 \lambda` each.

Outside of training :math:`\lambda` is one, where the objective is the evidence lower bound, or the
one that is asked for: ``fit.at(0.3)``, ``zoo compress RUN --complexity 0.3``. A weight is pruned
where its posterior says little against zero, :math:`e^{-\mu^2 / 2\sigma^2} > 0.83`.

Use it when the size of the network is to be decided after training, or for a curve of accuracy
against size at the price of about one training. For a single :math:`\lambda` known beforehand
`mean_field` or `graves` are cheaper and no worse: a hypernetwork has six times their parameters,
and each knot learns from a part of the steps. It is poorest where the best posterior bends sharply
between knots, which is where the network collapses to the prior; a linear one cannot bend at all.

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
from zoo.errors import ConfigError, PriorError
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
        description="Knots of the piecewise linear functions of the log weight: 6 are one per "
        "decade, 2 make them linear.",
    )


class HypernetworkNetwork(BNN):
    """A network whose prior has a random weight while it is trained."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.complexity = Complexity().to(next(self.net.parameters()))

    def use(self, method: Method, settings: Mapping[str, Options]) -> None:
        """Belong to a method; a posterior with a bound is refused, which options may ask for."""
        super().use(method, settings)
        for name in self.slots:
            if self.prior(name).is_bounded:
                raise PriorError(
                    f"the prior {self.priors[name]} of slot {name!r} bounds its posterior, "
                    "which a hypernetwork cannot follow. Take another one, such as Normal(0, 1)."
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
    analytic_kl=True,
    compresses=True,
    expected_failures={
        "recovers_linear_regression": ExpectedFailure(
            "means within",
            "posteriors between two knots are interpolated: with all the "
            "training there is, means are 2% off at the weight one",
        ),
    },
)
class HypernetworkMethod(Method):
    """Standard normal priors on every weight and bias, and a posterior for every complexity."""

    network = HypernetworkNetwork
    options = HypernetworkOptions
    takes_guides = False

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return posteriors that are piecewise linear in the log of the weight."""
        assert isinstance(model, HypernetworkNetwork)
        return HypernetworkGuide(
            {name: _part(model, name, init_scale) for name in model.slots},
            complexity=Complexity().to(model.complexity.chosen),
            num_knots=self.settings.knots,
        )

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Refuse: a hypernetwork follows the priors."""
        raise ConfigError(
            "the guide 'full_rank' cannot be used: a hypernetwork has a guide of its own."
        )

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: it is averaged over weights of the divergence."""
        return False


def _part(model: BNN, name: str, init_scale: float) -> Guide:
    """Return the guide of one slot; weights with normal priors are pruned as in `graves`."""
    slot, prior = model.slots[name], model.prior(name)
    if prior.normal() is not None and len(slot.shape) > 1 and not prior.is_fitted:
        return GravesGuide(name, slot.value, init_scale=init_scale)
    return model.prior(name).guide(init_scale)
