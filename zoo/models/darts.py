r"""Differentiable architecture search: structure and weights as points, fitted to different rows.

An edge mixes its primitives with weights :math:`\gamma = \mathrm{softmax}(\alpha)`. One half of the
training rows fits the weights of the network, the other half the scores :math:`\alpha`:

.. math::
    \min_\alpha L_{val}(w^*(\alpha), \alpha) + \frac{\|\alpha\|^2}{2 \tau^2}, \qquad
    w^*(\alpha) = \arg\min_w L_{train}(w, \alpha)

Every step updates both, each by the gradient on its own rows with the other held fixed (the
first-order variant). The penalty is the weight decay of the publication, read as a prior
:math:`\alpha_k \sim N(0, \tau^2)`. With preferences :math:`s_k` or a penalty on the number of
parameters :math:`n_k` the prior mean is :math:`\log s_k - \lambda_n n_k`. ``--prior
'*.structure=Darts(scale=3)'`` weakens the penalty.

Use it as the baseline for `gumbel_softmax_structure`. It takes the same networks: graphs, cells, or
a stack of layers whose activation functions become choices.

It gives no posterior. All draws are the same point, so the epistemic uncertainty of a prediction is
zero and its probabilities are those of a single network. Structures often end in the interior of
the simplex and lose accuracy when every edge is reduced to its largest weight. The weights see only
half of the rows.

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
from zoo.models.gumbel_softmax_structure import StructureMethod, StructurePrior
from zoo.network.bnn import BNN
from zoo.registry import ExpectedFailure, Recipe, register


class Darts(StructurePrior):
    r"""Normal scores of the primitives of one mixture; their softmax gives the weights.

    Parameters
    ----------
    scale
        Prior standard deviation :math:`\tau` of the scores.
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
        """Set the prior means of the scores."""
        self.register_buffer("loc", self.log_preferences(), persistent=False)

    def model(self) -> Tensor:
        """Sample the scores; the network mixes primitives by their softmax."""
        prior = Normal(self.loc, self.number(self.scale)).to_event(1)
        alpha = pyro.sample(self.site("logits"), prior)
        return torch.softmax(alpha, dim=-1)

    def guide(self, init_scale: float) -> Guide:
        """Return point estimates of the scores, started at the prior means."""
        return DartsGuide(self.slot.name, self.loc)


@register(
    priors={"*.structure": "Darts(scale=1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.0, init_scale=0.05),
    reference="Liu, Simonyan and Yang (2019), DARTS: Differentiable Architecture Search",
    expected_failures={
        "reaches_its_own_optimum": ExpectedFailure(
            "can be raised by",
            "weights and structure are fitted to different rows, so there is no common objective",
        )
    },
)
class DartsMethod(StructureMethod):
    """Normal priors on scores, weights as points; each level has its own rows."""

    has_posterior: ClassVar[bool] = False
    own_guide = "darts fits points. Use gumbel_softmax_structure for a posterior"

    def upper_parameters(self, model: BNN, guide: Guide) -> Sequence[nn.Parameter]:
        """Return the scores, which are fitted to their own rows."""
        assert isinstance(guide, Composite)
        names = [name for name, slot in model.slots.items() if slot.layer == "structure"]
        return [parameter for name in names for parameter in guide[name].parameters()]

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: the rows are split between two objectives."""
        return False
