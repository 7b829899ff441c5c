r"""Structure as a random variable: which primitive functions a network is made of.

A network is a graph whose edges mix primitives, :math:`f_k = \sum_{j} \sum_l \gamma^{jk}_l
g^{jk}_l(f_j)` (see `zoo.network.nets.graph`). Weights of the network and weights of its primitives
have a joint posterior:

.. math::
    w_i \sim N(0, 1), \quad \gamma^{jk} \sim GS(s, \lambda), \qquad
    q(w_i) = N(\mu_i, \sigma_i^2), \quad q(\gamma^{jk}) = GS(s_q^{jk}, \theta^{jk})

with the Gumbel-Softmax distribution :math:`\gamma = \mathrm{softmax}((\log s + G) / \lambda)`,
:math:`G_l \sim \mathrm{Gumbel}(0, 1)`. The divergence of the weights has a closed form. That of the
structure has none: the objective holds :math:`\log q(\gamma) - \log p(\gamma)` of the draw, which
is unbiased. Both densities are those of :math:`u_l = \log(\gamma_l / \gamma_K)`, where nothing
underflows at low temperatures.

The prior of structure is text as any other. ``--prior
'*.structure=GumbelSoftmaxStructure(temperature=0.3, penalty=1e-3)'`` makes a primitive with
:math:`n` parameters :math:`e^{-n/1000}` times as probable; ``points=vertices`` lets every draw be
one architecture, with the discrete divergence in closed form; ``space=cube`` gives each primitive a
weight of its own; ``DirichletStructure()`` has a Dirichlet posterior and a closed form. A
temperature that follows the training instead of being learned is ``--option schedule=geometric
--option end=0.2``.

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

_TEMPERATURES = constraints.interval(1e-3, 1e3)
_PENALTIES = constraints.interval(0.0, 1e6)


class _StructurePrior(SlotPrior, registered=False):
    """What the priors of structure share: the favour of each primitive."""

    of_structure: ClassVar[bool] = True
    support: ClassVar[constraints.Constraint] = constraints.unit_interval

    s: tuple[float, ...]
    penalty: float
    space: Space

    @classmethod
    def check(cls, parameters: Mapping[str, Any]) -> None:
        """Refuse favours that are not positive."""
        if any(value <= 0 for value in parameters["s"]):
            raise PriorError(
                f"{cls.__name__} needs positive numbers as s. Got {list(parameters['s'])}."
            )

    def log_favours(self) -> Tensor:
        r"""Return :math:`\log s_k - \lambda_n n_k` for every primitive of the slot."""
        size = self.slot.shape[0]
        if self.s and len(self.s) != size:
            raise PriorError(
                f"{type(self).__name__} has {len(self.s)} numbers in s, but {self.slot.name!r} "
                f"mixes {size} primitives. Give as many, or none for equal ones."
            )
        favours = constant(self.s or (1.0,) * size, self.slot.value).log()
        sizes = self.slot.value.new_tensor(self.slot.sizes or (0.0,) * size)
        return favours - self.penalty * sizes

    def simplices(self, values: Tensor, others: float) -> Tensor:
        """Return one row of numbers per simplex: a cube is made of simplices with two corners."""
        if self.space == "simplex":
            return values
        return torch.stack([values, torch.full_like(values, others)], dim=-1)

    def weights(self, coordinates: Tensor, *, rounded: bool = False) -> Tensor:
        r"""Return the weights :math:`\gamma` of primitives, rounded to a corner if asked for."""
        gamma = log_weights(coordinates).exp()
        if rounded:
            largest = gamma == gamma.amax(-1, keepdim=True)
            # The value is rounded, the gradient is that of the weights.
            gamma = largest.to(gamma.dtype) + (gamma - gamma.detach())
        return gamma[..., 0] if self.space == "cube" else gamma


class GumbelSoftmaxStructureOptions(Options):
    """Settings of the guide: its temperature."""

    schedule: Schedule = Field(
        "trained",
        description="The temperature of the posterior: trained with it, or constant, linear or "
        "geometric from start to end.",
    )
    start: float = Field(1.0, ge=1e-3, le=1e3, description="Temperature at the start.")
    end: float = Field(0.3, ge=1e-3, le=1e3, description="Temperature at the end.")


class GumbelSoftmaxStructure(_StructurePrior):
    r"""Gumbel-Softmax prior of the weights of primitives, :math:`\gamma \sim GS(s, \lambda)`.

    .. math:: \gamma = \mathrm{softmax}((\log s + G) / \lambda), \quad G_k \sim \mathrm{Gumbel}

    At low temperatures one primitive has nearly all the weight, at high ones all have the same. The
    posterior is of the same family; its divergence has no closed form, and one draw of :math:`\log
    q - \log p` stands for it.

    Parameters
    ----------
    temperature
        :math:`\lambda` of the prior.
    s
        How much each primitive is favoured; all the same by default.
    penalty
        :math:`\lambda_n`: the favour of a primitive with :math:`n` parameters is multiplied by
        :math:`\exp(-\lambda_n n)`, so that larger networks are less probable. With ``vertices`` the
        divergence then holds :math:`\lambda_n` times the expected number of parameters. In the
        interior its pull is bounded, and large penalties take many steps to act.
    space
        ``simplex``: weights add up to one. ``cube``: every primitive has a weight of its own
        between zero and one; :math:`s` are then the odds of it.
    points
        ``interior``: all weights. ``vertices``: weights are zero or one, which makes every draw an
        ordinary architecture; the divergence is then that of discrete distributions, in closed
        form, and gradients pass as if nothing had been rounded (straight through), which is biased.

    References
    ----------
    Maddison et al. (2017), *The Concrete Distribution*; Bakhteev and Strijov (2021).
    """

    temperature: float = 0.5
    s: tuple[float, ...] = ()
    penalty: float = 0.0
    space: Space = "simplex"
    points: Literal["interior", "vertices"] = "interior"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": _TEMPERATURES,
        "penalty": _PENALTIES,
    }
    options: ClassVar[type[Options]] = GumbelSoftmaxStructureOptions
    old_names: ClassVar[tuple[str, ...]] = ("GumbelSoftmax",)
    moved_parameters: ClassVar[tuple[str, ...]] = ("schedule", "start", "end")

    def setup(self) -> None:
        """Make logits and temperature, which an upper level may change."""
        logits = self.simplices(self.log_favours(), 0.0)
        temperature = self.slot.value.new_full(logits.shape[:-1], self.temperature)
        self.register_buffer("logits", logits, persistent=False)
        self.register_buffer("prior_temperature", temperature, persistent=False)

    def model(self) -> Tensor:
        """Sample coordinates of the simplex; the network mixes primitives by its weights."""
        prior = self.distribution()
        u = pyro.sample(self.site("logits"), prior.to_event(len(prior.batch_shape)))
        return self.weights(u, rounded=self.points == "vertices")

    def distribution(self) -> GumbelSoftmax:
        """Return the prior of the coordinates, one simplex for each element of a batch."""
        family = Corner if self.points == "vertices" else GumbelSoftmax
        logits, temperature = self.get_buffer("logits"), self.get_buffer("prior_temperature")
        return family(temperature, logits, validate_args=False)

    def guide(self, init_scale: float) -> Guide:
        """Return a Gumbel-Softmax posterior that starts without a favourite."""
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
        """Return the prior of the interior, which a sampler that follows gradients can sample."""
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


class DirichletStructure(_StructurePrior):
    r"""Dirichlet prior of the weights of primitives, :math:`\gamma \sim \mathrm{Dir}(\lambda s)`.

    Parameters
    ----------
    temperature
        :math:`\lambda`: towards zero the mass moves to the vertices, above :math:`1 / s` to the
        centre.
    s
        How much each primitive is favoured; all the same by default.
    penalty
        As for `GumbelSoftmaxStructure`.
    space
        ``simplex``, or ``cube``: a Beta distribution with :math:`\lambda s` and :math:`\lambda` for
        each primitive.
    """

    temperature: float = 1.0
    s: tuple[float, ...] = ()
    penalty: float = 0.0
    space: Space = "simplex"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": _TEMPERATURES,
        "penalty": _PENALTIES,
    }
    options: ClassVar[type[Options]] = DirichletStructureOptions
    moved_parameters: ClassVar[tuple[str, ...]] = ("posterior",)

    def setup(self) -> None:
        """Make the concentrations."""
        tiny = torch.finfo(self.slot.value.dtype).tiny
        favours = self.log_favours().exp().clamp(min=tiny)
        concentration = self.temperature * self.simplices(favours, 1.0)
        self.register_buffer("concentration", concentration, persistent=False)

    def model(self) -> Tensor:
        """Sample coordinates of the simplex; the network mixes primitives by its weights."""
        prior = Dirichlet(self.get_buffer("concentration"), validate_args=False)
        u = pyro.sample(self.site("logits"), prior.to_event(len(prior.batch_shape)))
        return self.weights(u)

    def guide(self, init_scale: float) -> Guide:
        """Return a posterior that starts without a favourite."""
        concentration = self.get_buffer("concentration")
        if self.settings.posterior == "dirichlet":
            return DirichletStructureGuide(self.slot.name, concentration)
        return GumbelSoftmaxStructureGuide(self.slot.name, concentration)


def require_structure(model: BNN) -> None:
    """Refuse a network in which there is nothing to choose."""
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
    exactness="mean_field",
    small_problem={
        "data": "diabetes",
        "net": {
            "edges": {"0-1": ["linear(outputs)", ["powers(2)", "linear(outputs)"], "constant"]}
        },
        "likelihood": "gaussian(noise=0.7)",
    },
    analytic_kl=False,
)
class GumbelSoftmaxStructureMethod(Method):
    """Normal priors on weights, Gumbel-Softmax priors on structure."""

    def prepared(self, net: nn.Module) -> nn.Module:
        """Turn the activation functions of a stack of layers into choices."""
        return with_choices(net)

    def check(self, model: BNN, x: Tensor) -> None:
        """Refuse a network in which there is nothing to choose."""
        require_structure(model)
