r"""Structure as a random variable: which primitive functions a network is made of.

A network is a graph whose edges mix primitives, :math:`f_k = \sum_{j} \sum_l \gamma^{jk}_l
g^{jk}_l(f_j)` (see `zoo.network.nets.graph`). Weights of the network and weights of its primitives
have a joint posterior:

.. math::
    w_i \sim N(0, 1), \quad \gamma^{jk} \sim GS(s, \lambda), \qquad
    q(w_i) = N(\mu_i, \sigma_i^2), \quad q(\gamma^{jk}) = GS(s_q^{jk}, \theta^{jk})

with the Gumbel-Softmax law :math:`\gamma = \mathrm{softmax}((\log s + G) / \lambda)`,
:math:`G_l \sim \mathrm{Gumbel}(0, 1)`. The divergence of the weights has a closed form. That of the
structure has none: the objective holds :math:`\log q(\gamma) - \log p(\gamma)` of the draw, which
is unbiased. Both densities are those of :math:`u_l = \log(\gamma_l / \gamma_K)`, where nothing
underflows at low temperatures.

The prior of structure is text as any other. ``--prior '*.structure=GumbelSoftmax(temperature=0.3,
penalty=1e-3)'`` makes a primitive with :math:`n` parameters :math:`e^{-n/1000}` times as probable;
``points=vertices`` lets every draw be one architecture, with the discrete divergence in closed
form; ``space=cube`` gives each primitive a weight of its own; ``DirichletStructure()`` has a
Dirichlet posterior and a closed form. A temperature that follows the training instead of being
learned is written ``schedule=geometric, start=1, end=0.2``.

Use it to let data choose between parts of a network, and to see how sure they are. Networks with
something to choose are graphs (``--net graph:path.yaml``, ``--net cells:8-2-2``); in a plain stack
of layers every activation function becomes a choice between itself, the identity and another one.

It fails where a factorised posterior does: weights and structure are independent in it, so the
weights of a primitive that is hardly used stay at their prior and the primitive stays unused. A
structure that moves before the weights are trained prefers what is trained fastest: start it more
than once (``--restarts``), or train the weights first (``benchmarks/bilevel.py`` does). At
temperatures far below 0.3 gradients become rare and large. With ``points=vertices`` gradients are
biased; in the interior the pull of a penalty is bounded, and it may come too late to matter. A
mixture at the centre of the simplex is a legal network, and no architecture: its largest weights
name one, which has to be judged anew.

Reference: Bakhteev and Strijov (2021), *Selection of a deep learning model structure*; Maddison
et al. (2017), *The Concrete Distribution*, ICLR.
"""

from typing import Unpack

from torch import Tensor, nn

from zoo.errors import ConfigError
from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions
from zoo.network.nets.graph import with_choices
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)", "*.structure": "GumbelSoftmax(temperature=0.5)"}


class StructureBNN(BNN):
    """A network with weights and structure that are random."""

    def check(self, x: Tensor) -> None:
        """Refuse a network in which there is nothing to choose."""
        if not any(slot.layer == "structure" for slot in self.slots.values()):
            raise ConfigError(
                "the network has no random structure. Use a graph, for example --net "
                "graph:path.yaml or --net cells:8-2-2, or a stack of layers with activation "
                "functions, and leave '*.structure' among the Bayesian slots."
            )


@register(
    priors=PRIORS,
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Bakhteev and Strijov (2021), Selection of a deep learning model structure",
    exactness="mean_field",
    truth="nuts",
    small_problem={
        "data": "diabetes",
        "net": {
            "edges": {"0-1": ["linear(outputs)", ["powers(2)", "linear(outputs)"], "constant"]}
        },
        "likelihood": "gaussian(noise=0.7)",
    },
    analytic_kl=False,
)
def gumbel_softmax_structure(
    net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]
) -> BNN:
    """Build the model: normal priors on weights, Gumbel-Softmax priors on structure."""
    return StructureBNN(with_choices(net), likelihood, default_priors=PRIORS, **options)
