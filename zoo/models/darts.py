r"""Differentiable architecture search: structure and weights as points, fitted to different rows.

An edge mixes its primitives with weights :math:`\gamma = \mathrm{softmax}(\alpha)`. Half of the
training rows fit the weights of the network, the other half the scores :math:`\alpha`:

.. math::
    \min_\alpha L_{val}(w^*(\alpha), \alpha) + \frac{\|\alpha\|^2}{2 \tau^2}, \qquad
    w^*(\alpha) = \arg\min_w L_{train}(w, \alpha)

Every step moves both, each by the gradient of its own rows with the other one held fixed (the
first-order variant). The penalty of the scores is the weight decay of the publication, read as a
prior :math:`\alpha \sim N(0, \tau^2)`; ``--prior '*.structure=SoftmaxStructure(scale=3)'`` weakens
it.

Use it as the baseline that `gumbel_softmax_structure` is held against. Networks are those of that
method: graphs, cells, or a stack of layers whose activation functions become choices.

It fails as a posterior: there is none. Draws are all the same point, so the epistemic uncertainty
of a prediction is zero and its probabilities are those of one network. Structures tend to end in
the middle of the simplex, and lose accuracy when the largest weight of every edge is taken for all.
Half of the rows are not seen by the weights.

Reference: Liu, Simonyan and Yang (2019), *DARTS: Differentiable Architecture Search*, ICLR.
"""

from typing import Unpack

from torch import nn

from guides.base import Guide
from zoo.errors import ConfigError
from zoo.likelihoods import Likelihood
from zoo.models.gumbel_softmax_structure import StructureBNN
from zoo.network.bnn import BNNOptions
from zoo.network.nets.graph import with_choices
from zoo.registry import Recipe, register

PRIORS = {"*.structure": "SoftmaxStructure(scale=1)"}


class DartsBNN(StructureBNN):
    """A network of points, whose structure is fitted to rows of its own."""

    has_posterior = False
    loss_is_elbo = False  # rows are split between two objectives

    @property
    def upper_slots(self) -> list[str]:
        """The structure."""
        return [name for name, slot in self.slots.items() if slot.layer == "structure"]

    def full_rank_guide(self, *, init_scale: float) -> Guide:
        """Refuse: a point has no correlations."""
        raise ConfigError(
            "the method 'darts' fits points and takes no guide 'full_rank'. Use "
            "gumbel_softmax_structure for a posterior."
        )


@register(
    priors=PRIORS,
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.0, init_scale=0.05),
    reference="Liu, Simonyan and Yang (2019), DARTS: Differentiable Architecture Search",
    exactness="mean_field",
    truth="brute_force",
    analytic_kl=True,
)
def darts(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> DartsBNN:
    """Build the model: scores of primitives with a normal prior, weights as points."""
    return DartsBNN(with_choices(net), likelihood, default_priors=PRIORS, **options)
