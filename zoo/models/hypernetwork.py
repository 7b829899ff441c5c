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
:math:`e = (\log_{10} \lambda + 3) / 5`, with one knot per decade; ``--guide linear`` makes them
linear, :math:`C + D e`. Whatever the priors are, every parameter of their guides becomes such a
function; structure as well, so that ``--prior '*.structure=GumbelSoftmax(points=vertices,
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

from typing import Unpack

import pyro.poutine as poutine
from torch import Tensor, nn

from guides.base import Guide
from guides.graves import Graves
from guides.hypernetwork import Complexity, Hypernetwork
from zoo.errors import ConfigError, PriorError
from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.priors import build_guide
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)"}

#: Knots of a piecewise linear mapping, one per decade of weights, and of a linear one.
NUM_KNOTS = 6
LINEAR_KNOTS = 2


class HypernetworkBNN(BNN):
    """A network whose posterior depends on the weight of the divergence."""

    loss_is_elbo = False  # it is averaged over weights of the divergence

    def __init__(
        self, net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]
    ) -> None:
        super().__init__(net, likelihood, default_priors=PRIORS, **options)
        # Not a submodule: it is one of the guide, and must not have two names in an objective.
        self._shared = (Complexity().to(next(self.net.parameters())),)
        for name in self.slots:
            if self.program(name).is_constrained:
                raise PriorError(
                    f"the prior {self.priors[name]} of slot {name!r} moves posteriors by itself, "
                    "which a hypernetwork cannot follow. Take another one, such as Normal(0, 1)."
                )

    @property
    def complexity(self) -> Complexity:
        """The weight of the divergence, which belongs to the guide."""
        return self._shared[0]

    def sample_slots(self) -> dict[str, Tensor]:
        """Draw a value for every slot; in training with the weight that the guide has drawn."""
        if not self.complexity.training:
            return super().sample_slots()
        with poutine.scale(scale=self.complexity.weight):
            return super().sample_slots()

    def constrain(self, guide: Guide) -> None:
        """Do nothing: priors that would are refused, and looking at all parts takes time."""

    def guide(self, *, init_scale: float) -> Hypernetwork:
        """Return posteriors that are piecewise linear in the log of the weight."""
        return self._guide(init_scale, NUM_KNOTS)

    def linear_guide(self, *, init_scale: float) -> Hypernetwork:
        """Return posteriors that are linear in the log of the weight."""
        return self._guide(init_scale, LINEAR_KNOTS)

    def full_rank_guide(self, *, init_scale: float) -> Guide:
        """Refuse: a hypernetwork follows the priors."""
        raise ConfigError(
            "the guide 'full_rank' cannot be used: a hypernetwork is factorised (piecewise linear) "
            "or linear."
        )

    def _guide(self, init_scale: float, num_knots: int) -> Hypernetwork:
        parts = {name: self._part(name, init_scale) for name in self.slots}
        return Hypernetwork(parts, complexity=self.complexity, num_knots=num_knots)

    def _part(self, name: str, init_scale: float) -> Guide:
        slot, program = self.slots[name], self.program(name)
        if self.normal_prior(name) is not None and len(slot.shape) > 1 and not program.is_fitted:
            return Graves(program, slot=name, init={name: slot.value}, init_scale=init_scale)
        return build_guide(self.priors[name], slot, program, init_scale=init_scale)


@register(
    priors=PRIORS,
    recipe=Recipe(num_steps=6000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Grebenkova, Bakhteev and Strijov (2021), Variational Deep Learning Model "
    "Optimization with Complexity Control",
    exactness="mean_only",
    truth="exact",
    analytic_kl=True,
    compresses=True,
    expected_failures={
        "recovers_linear_regression": "posteriors between two knots are interpolated: with all the "
        "training there is, means are 2% off at the weight one",
    },
)
def hypernetwork(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: standard normal priors on every weight and bias."""
    return HypernetworkBNN(net, likelihood, **options)
