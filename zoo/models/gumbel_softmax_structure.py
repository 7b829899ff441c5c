r"""Structure as a random variable: which primitive functions a network is made of.

A network is a graph whose edges mix primitives, :math:`f_k = \sum_{j} \sum_l \gamma^{jk}_l
g^{jk}_l(f_j)` (see `zoo.network.nets.graph`). The weights of the network and the weights of its
primitives are both random:

.. math::
    w_i \sim N(0, 1), \quad \gamma^{jk} \sim GS(s, \lambda), \qquad
    q(w_i) = N(\mu_i, \sigma_i^2), \quad q(\gamma^{jk}) = GS(s_q^{jk}, \theta^{jk})

with the Gumbel-Softmax distribution :math:`\gamma = \mathrm{softmax}((\log s + G) / \lambda)`,
:math:`G_l \sim \mathrm{Gumbel}(0, 1)`. The divergence of the weights has a closed form. That of the
structure has none; the objective uses the unbiased estimate :math:`\log q(\gamma) - \log p(\gamma)`
at the draw. The sites are :math:`u_l = \log(\gamma_l / \gamma_K)`, whose densities do not underflow
at low temperatures.

The prior of the structure is given as text like any other. ``--prior
'*.structure=GumbelSoftmaxStructure(temperature=0.3, penalty=1e-3)'`` makes a primitive with
:math:`n` parameters :math:`e^{-n/1000}` times as probable. With ``points=vertices`` every draw is
one architecture and the discrete divergence has a closed form; ``space=cube`` gives each primitive
a weight of its own; ``DirichletStructure()`` has a Dirichlet posterior and a closed form.
``--option schedule=geometric --option end=0.2`` anneals the temperature instead of learning it.

Use it to let the data choose between parts of a network, with a probability for each choice. It
needs a network with choices: a graph (``--net graph:path.yaml``, ``--net cells:8-2-2``) or a plain
stack of layers, where every activation function becomes a choice between itself, the identity and
another one.

The posterior is factorised: weights and structure are independent, so the weights of a primitive
that is hardly used stay at their prior and the primitive stays unused. A structure that is updated
before the weights are trained prefers primitives that train fast; use ``--restarts``, or train the
weights first as ``benchmarks/bilevel.py`` does. At temperatures far below 0.3 gradients become rare
and large. With ``points=vertices`` gradients are biased; in the interior the gradient of a penalty
is bounded, and the penalty may act too late. A mixture at the centre of the simplex is a valid
network but not an architecture. The architecture of its largest weights has to be evaluated
separately.

Reference: Bakhteev and Strijov (2021), *Selection of a deep learning model structure*; Maddison,
Mnih and Teh (2017), *The Concrete Distribution*, ICLR.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pyro
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import constraints

from guides.base import Guide
from guides.gumbel_softmax_structure import (
    DirichletStructureGuide,
    GumbelSoftmaxStructureGuide,
    Schedule,
)
from guides.simplex import Corner, Dirichlet, GumbelSoftmax, log_weights
from zoo.errors import ConfigError, PriorError
from zoo.network.bnn import BNN
from zoo.network.method import Method
from zoo.network.nets.graph import with_choices
from zoo.priors import Options, SlotPrior
from zoo.priors.slot_prior import constant
from zoo.registry import Recipe, register

Space = Literal["simplex", "cube"]


class StructurePrior(SlotPrior, registered=False):
    """Base of the priors of structure, with a preference for each primitive."""

    of_structure: ClassVar[bool] = True
    support: ClassVar[constraints.Constraint] = constraints.unit_interval

    s: tuple[float, ...]
    penalty: float
    space: Space

    @classmethod
    def check(cls, parameters: Mapping[str, Any]) -> None:
        """Reject preferences that are not positive."""
        if any(value <= 0 for value in parameters["s"]):
            raise PriorError(
                f"{cls.__name__} needs positive numbers as s. Got {list(parameters['s'])}."
            )

    def log_preferences(self) -> Tensor:
        r"""Return :math:`\log s_k - \lambda_n n_k` for every primitive of the slot."""
        size = self.slot.shape[0]
        if self.s and len(self.s) != size:
            raise PriorError(
                f"{type(self).__name__} has {len(self.s)} numbers in s, but {self.slot.name!r} "
                f"mixes {size} primitives. Give as many, or none for equal ones."
            )
        preferences = constant(self.s or (1.0,) * size, self.slot.value).log()
        sizes = self.slot.value.new_tensor(self.slot.sizes or (0.0,) * size)
        return preferences - self.penalty * sizes

    def simplices(self, values: Tensor, others: float) -> Tensor:
        """Return one row per simplex; a cube is a product of simplices with two corners."""
        if self.space == "simplex":
            return values
        return torch.stack([values, torch.full_like(values, others)], dim=-1)

    def weights(self, coordinates: Tensor, *, rounded: bool = False) -> Tensor:
        r"""Return the weights :math:`\gamma` of primitives, rounded to a corner if ``rounded``."""
        gamma = log_weights(coordinates).exp()
        if rounded:
            largest = gamma == gamma.amax(-1, keepdim=True)
            # Straight through: the gradient is that of the weights before rounding.
            gamma = largest.to(gamma.dtype) + (gamma - gamma.detach())
        return gamma[..., 0] if self.space == "cube" else gamma


class GumbelSoftmaxStructureOptions(Options):
    """Settings of the guide: its temperature."""

    schedule: Schedule = Field(
        "trained",
        description="Temperature of the posterior: trained as a parameter, constant, or linear or "
        "geometric from start to end.",
    )
    start: float = Field(1.0, ge=1e-3, le=1e3, description="Initial temperature.")
    end: float = Field(0.3, ge=1e-3, le=1e3, description="Final temperature.")


class GumbelSoftmaxStructure(StructurePrior):
    r"""Gumbel-Softmax prior of the weights of primitives, :math:`\gamma \sim GS(s, \lambda)`.

    Parameters
    ----------
    temperature
        :math:`\lambda` of the prior. At low temperatures one primitive has almost all the weight,
        at high ones all have the same.
    s
        Prior preference for each primitive; equal by default.
    penalty
        :math:`\lambda_n`: the preference for a primitive with :math:`n` parameters is multiplied by
        :math:`\exp(-\lambda_n n)`, so that larger networks are less probable. With ``vertices`` the
        divergence then contains :math:`\lambda_n` times the expected number of parameters. In the
        interior its gradient is bounded, and large penalties take many steps to act.
    space
        ``simplex``: weights sum to one. ``cube``: every primitive has a weight of its own between
        zero and one, with odds :math:`s`.
    points
        ``interior``: all weights. ``vertices``: weights are zero or one, so that every draw is an
        ordinary architecture. The divergence is then that of discrete distributions, in closed
        form, and gradients ignore the rounding (straight through), which is biased.
    """

    temperature: float = 0.5
    s: tuple[float, ...] = ()
    penalty: float = 0.0
    space: Space = "simplex"
    points: Literal["interior", "vertices"] = "interior"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": constraints.interval(1e-3, 1e3),
        "penalty": constraints.interval(0.0, 1e6),
    }
    options: ClassVar[type[Options]] = GumbelSoftmaxStructureOptions
    old_names: ClassVar[tuple[str, ...]] = ("GumbelSoftmax",)
    moved_parameters: ClassVar[tuple[str, ...]] = ("schedule", "start", "end")

    def setup(self) -> None:
        """Make buffers of logits and temperature, which an upper level may change."""
        logits = self.simplices(self.log_preferences(), 0.0)
        temperature = self.slot.value.new_full(logits.shape[:-1], self.temperature)
        self.register_buffer("logits", logits, persistent=False)
        self.register_buffer("prior_temperature", temperature, persistent=False)

    def model(self) -> Tensor:
        """Sample coordinates of the simplex and return the weights of the primitives."""
        prior = self.distribution()
        u = pyro.sample(self.site("logits"), prior.to_event(len(prior.batch_shape)))
        return self.weights(u, rounded=self.points == "vertices")

    def distribution(self) -> GumbelSoftmax:
        """Return the prior of the coordinates, with one batch element per simplex."""
        family = Corner if self.points == "vertices" else GumbelSoftmax
        logits, temperature = self.get_buffer("logits"), self.get_buffer("prior_temperature")
        return family(temperature, logits, validate_args=False)

    def guide(self, init_scale: float) -> Guide:
        """Return a Gumbel-Softmax posterior with equal initial logits."""
        schedule, is_corner = self.settings.schedule, self.points == "vertices"
        return GumbelSoftmaxStructureGuide(
            self.slot.name,
            self.get_buffer("logits"),
            corners=is_corner,
            # The objective of corners does not depend on the temperature.
            schedule="constant" if is_corner and schedule == "trained" else schedule,
            start=self.settings.start,
            end=self.settings.end,
        )

    def proper(self) -> str | None:
        """Return the prior of the interior, which gradient-based samplers need."""
        if self.points == "interior":
            return None
        listed = f"[{', '.join(map(str, self.s))}]"
        return (
            f"GumbelSoftmaxStructure(temperature={self.temperature}, s={listed}, "
            f"penalty={self.penalty}, space={self.space})"
        )


class DirichletStructureOptions(Options):
    """Settings of the guide: its family."""

    posterior: Literal["dirichlet", "gumbel_softmax"] = Field(
        "dirichlet", description="dirichlet, with a divergence in closed form, or gumbel_softmax."
    )


class DirichletStructure(StructurePrior):
    r"""Dirichlet prior of the weights of primitives, :math:`\gamma \sim \mathrm{Dir}(\lambda s)`.

    Parameters
    ----------
    temperature
        :math:`\lambda`: towards zero the mass moves to the vertices, above :math:`1 / s` to the
        centre.
    s, penalty
        As for `GumbelSoftmaxStructure`.
    space
        ``simplex``, or ``cube``: a Beta distribution with :math:`\lambda s` and :math:`\lambda` for
        each primitive.
    """

    temperature: float = 1.0
    s: tuple[float, ...] = ()
    penalty: float = 0.0
    space: Space = "simplex"

    ranges: ClassVar[dict[str, constraints.Constraint]] = GumbelSoftmaxStructure.ranges
    options: ClassVar[type[Options]] = DirichletStructureOptions
    moved_parameters: ClassVar[tuple[str, ...]] = ("posterior",)

    def setup(self) -> None:
        """Make a buffer of the concentrations."""
        tiny = torch.finfo(self.slot.value.dtype).tiny
        preferences = self.log_preferences().exp().clamp(min=tiny)
        concentration = self.temperature * self.simplices(preferences, 1.0)
        self.register_buffer("concentration", concentration, persistent=False)

    def model(self) -> Tensor:
        """Sample coordinates of the simplex and return the weights of the primitives."""
        prior = Dirichlet(self.get_buffer("concentration"), validate_args=False)
        u = pyro.sample(self.site("logits"), prior.to_event(len(prior.batch_shape)))
        return self.weights(u)

    def guide(self, init_scale: float) -> Guide:
        """Return a posterior that is initially uniform."""
        concentration = self.get_buffer("concentration")
        if self.settings.posterior == "dirichlet":
            return DirichletStructureGuide(self.slot.name, concentration)
        return GumbelSoftmaxStructureGuide(self.slot.name, concentration)


class StructureMethod(Method):
    """Base of methods for networks with choices."""

    def prepared(self, net: nn.Module) -> nn.Module:
        """Turn the activation functions of a stack of layers into choices."""
        return with_choices(net)

    def check(self, model: BNN, x: Tensor) -> None:
        """Reject a network without choices."""
        if not any(slot.layer == "structure" for slot in model.slots.values()):
            raise ConfigError(
                "the network has no random structure. Use a graph, for example --net "
                "graph:path.yaml or --net cells:8-2-2, or a stack of layers with activation "
                "functions, and leave '*.structure' among the Bayesian slots."
            )


@register(
    priors={"*": "Normal(0, 1)", "*.structure": "GumbelSoftmaxStructure(temperature=0.5)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.05),
    reference="Bakhteev and Strijov (2021), Selection of a deep learning model structure",
    small_problem={
        "data": "diabetes",
        "net": {
            "edges": {"0-1": ["linear(outputs)", ["powers(2)", "linear(outputs)"], "constant"]}
        },
        "likelihood": "gaussian(noise=0.7)",
    },
    analytic_kl=False,
)
class GumbelSoftmaxStructureMethod(StructureMethod):
    """Normal priors on weights, Gumbel-Softmax priors on structure."""
