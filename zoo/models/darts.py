r"""Differentiable architecture search: structure and weights as points, fitted to different rows.

An edge mixes its primitives with weights :math:`\gamma = \mathrm{softmax}(\alpha)`. Half of the
training rows fit the weights of the network, the other half the scores :math:`\alpha`:

.. math::
    \min_\alpha L_{val}(w^*(\alpha), \alpha) + \frac{\|\alpha\|^2}{2 \tau^2}, \qquad
    w^*(\alpha) = \arg\min_w L_{train}(w, \alpha)

Every step moves both, each by the gradient of its own rows with the other one held fixed (the
first-order variant). The penalty of the scores is the weight decay of the publication, read as a
prior :math:`\alpha \sim N(0, \tau^2)`; ``--prior '*.structure=Darts(scale=3)'`` weakens
it.

Use it as the baseline that `gumbel_softmax_structure` is held against. Networks are those of that
method: graphs, cells, or a stack of layers whose activation functions become choices.

It fails as a posterior: there is none. Draws are all the same point, so the epistemic uncertainty
of a prediction is zero and its probabilities are those of one network. Structures tend to end in
the middle of the simplex, and lose accuracy when the largest weight of every edge is taken for all.
Half of the rows are not seen by the weights.

Reference: Liu, Simonyan and Yang (2019), *DARTS: Differentiable Architecture Search*, ICLR.
"""

from collections.abc import Sequence
from typing import ClassVar

import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor, nn
from torch.distributions import constraints

from guides.base import Composite, Guide
from guides.darts import DartsGuide
from zoo.errors import ConfigError
from zoo.models.gumbel_softmax_structure import _StructurePrior, require_structure
from zoo.network.bnn import BNN
from zoo.network.method import Method
from zoo.network.nets.graph import with_choices
from zoo.registry import ExpectedFailure, Recipe, register


class Darts(_StructurePrior):
    r"""Normal scores of primitives, :math:`\gamma = \mathrm{softmax}(\alpha)`, fitted as a point.

    .. math:: \alpha_k \sim N(\log s_k - \lambda_n n_k, \tau^2)

    Parameters
    ----------
    scale
        :math:`\tau`.
    s, penalty
        As for `zoo.models.gumbel_softmax_structure.GumbelSoftmaxStructure`.
    """

    scale: float = 1.0
    s: tuple[float, ...] = ()
    penalty: float = 0.0

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "scale": constraints.interval(1e-6, 1e6),
        "penalty": constraints.interval(0.0, 1e6),
    }
    old_names: ClassVar[tuple[str, ...]] = ("SoftmaxStructure",)

    loc: Tensor

    def setup(self) -> None:
        """Make the prior means of the scores."""
        self.register_buffer("loc", self.log_favours(), persistent=False)

    def model(self) -> Tensor:
        """Sample the scores; the network mixes primitives by their softmax."""
        prior = Normal(self.loc, self.number(self.scale)).to_event(1)
        alpha = pyro.sample(self.site("logits"), prior)
        return torch.softmax(alpha, dim=-1)

    def guide(self, init_scale: float) -> Guide:
        """Return scores that are a point, and start at the prior's."""
        return DartsGuide(self.slot.name, self.loc)


@register(
    priors={"*.structure": "Darts(scale=1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.0, init_scale=0.05),
    reference="Liu, Simonyan and Yang (2019), DARTS: Differentiable Architecture Search",
    exactness="mean_field",
    analytic_kl=True,
    expected_failures={
        "reaches_its_own_optimum": ExpectedFailure(
            "can be raised by",
            "weights and structure are fitted to different rows, so there is no common objective",
        ),
    },
)
class DartsMethod(Method):
    """Scores of primitives with a normal prior, weights as points, two levels of rows."""

    has_posterior: ClassVar[bool] = False
    takes_guides = False

    def prepared(self, net: nn.Module) -> nn.Module:
        """Turn the activation functions of a stack of layers into choices."""
        return with_choices(net)

    def check(self, model: BNN, x: Tensor) -> None:
        """Refuse a network in which there is nothing to choose."""
        require_structure(model)

    def upper_parameters(self, model: BNN, guide: Guide) -> Sequence[nn.Parameter]:
        """Return the structure, which has rows of its own."""
        assert isinstance(guide, Composite)
        names = [name for name, slot in model.slots.items() if slot.layer == "structure"]
        return [parameter for name in names for parameter in guide[name].parameters()]

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: rows are split between two objectives."""
        return False

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Refuse: a point has no correlations."""
        raise ConfigError(
            "the method 'darts' fits points and takes no guide 'full_rank'. Use "
            "gumbel_softmax_structure for a posterior."
        )
