"""Priors of the structure of a network: the weights with which an edge mixes its primitives."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from guides.darts import Darts
from guides.gumbel_softmax_structure import GumbelSoftmaxStructure
from guides.simplex import Corner, Dirichlet, log_weights
from guides.simplex import GumbelSoftmax as GumbelSoftmaxLaw
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.program import Program, constant
from zoo.priors.structured import StructuredPrior, structured

Space = Literal["simplex", "cube"]
Points = Literal["interior", "vertices"]

_TEMPERATURES = constraints.interval(1e-3, 1e3)


class _StructurePrior(StructuredPrior):
    """What the priors of structure share: the favour of each primitive."""

    of_structure: ClassVar[bool] = True
    support: ClassVar[constraints.Constraint] = constraints.unit_interval

    s: tuple[float, ...]
    penalty: float
    space: Space

    def __post_init__(self) -> None:
        if any(value <= 0 for value in self.s):
            raise PriorError(
                f"{type(self).__name__} needs positive numbers as s. Got {list(self.s)}."
            )

    def log_favours(self, slot: Slot) -> Tensor:
        r"""Return :math:`\log s_k - \lambda_n n_k` for every primitive of a slot."""
        size = slot.shape[0]
        if self.s and len(self.s) != size:
            raise PriorError(
                f"{type(self).__name__} has {len(self.s)} numbers in s, but {slot.name!r} mixes "
                f"{size} primitives. Give as many, or none for equal ones."
            )
        favours = constant(self.s or (1.0,) * size, slot.value).log()
        return favours - self.penalty * slot.value.new_tensor(slot.sizes or (0.0,) * size)

    def simplices(self, values: Tensor, others: float) -> Tensor:
        """Return one row of numbers per simplex: a cube is made of simplices with two corners."""
        if self.space == "simplex":
            return values
        return torch.stack([values, torch.full_like(values, others)], dim=-1)


@structured
@dataclass(frozen=True)
class GumbelSoftmax(_StructurePrior):
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
        ordinary architecture; the divergence is then that of discrete laws, in closed form, and
        gradients pass as if nothing had been rounded (straight through), which is biased.
    schedule
        The temperature of the posterior: ``trained`` with it, or ``constant``, ``linear`` or
        ``geometric`` from ``start`` to ``end``.
    start, end
        Temperatures of the posterior.

    References
    ----------
    Maddison et al. (2017), *The Concrete Distribution*; Bakhteev and Strijov (2021).
    """

    temperature: float = 0.5
    s: tuple[float, ...] = ()
    penalty: float = 0.0
    space: Space = "simplex"
    points: Points = "interior"
    schedule: Literal["trained", "constant", "linear", "geometric"] = "trained"
    start: float = 1.0
    end: float = 0.3

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": _TEMPERATURES,
        "start": _TEMPERATURES,
        "end": _TEMPERATURES,
        "penalty": constraints.interval(0.0, 1e6),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points == "vertices" and self.schedule == "trained":
            # The objective does not depend on the temperature there.
            object.__setattr__(self, "schedule", "constant")

    def program(self, slot: Slot) -> "StructureProgram":
        """Return the program with the one site ``{slot}_logits``."""
        logits = self.simplices(self.log_favours(slot), 0.0)
        temperature = slot.value.new_full(logits.shape[:-1], self.temperature)
        law = Corner if self.points == "vertices" else GumbelSoftmaxLaw
        return StructureProgram(
            slot, law, self.space, self.points, temperature=temperature, logits=logits
        )

    def guide(self, slot: Slot, program: Program, init_scale: float) -> GumbelSoftmaxStructure:
        """Return a Gumbel-Softmax posterior that starts without a favourite."""
        return GumbelSoftmaxStructure.gumbel_softmax(
            program,
            slot=slot.name,
            corners=self.points == "vertices",
            schedule=self.schedule,
            start=self.start,
            end=self.end,
        )

    def proper(self) -> str | None:
        """Return the prior of the interior, which a sampler that follows gradients can sample."""
        if self.points == "interior":
            return None
        listed = f"[{', '.join(map(str, self.s))}]"
        return (
            f"GumbelSoftmax(temperature={self.temperature}, s={listed}, penalty={self.penalty}, "
            f"space={self.space})"
        )


@structured
@dataclass(frozen=True)
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
        As for `GumbelSoftmax`.
    space
        ``simplex``, or ``cube``: a Beta law with :math:`\lambda s` and :math:`\lambda` for each
        primitive.
    posterior
        ``dirichlet``, with a divergence in closed form, or ``gumbel_softmax``.
    """

    temperature: float = 1.0
    s: tuple[float, ...] = ()
    penalty: float = 0.0
    space: Space = "simplex"
    posterior: Literal["dirichlet", "gumbel_softmax"] = "dirichlet"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": _TEMPERATURES,
        "penalty": constraints.interval(0.0, 1e6),
    }

    def program(self, slot: Slot) -> "StructureProgram":
        """Return the program with the one site ``{slot}_logits``."""
        tiny = torch.finfo(slot.value.dtype).tiny
        favours = self.log_favours(slot).exp().clamp(min=tiny)
        concentration = self.temperature * self.simplices(favours, 1.0)
        return StructureProgram(
            slot, Dirichlet, self.space, "interior", concentration=concentration
        )

    def guide(self, slot: Slot, program: Program, init_scale: float) -> GumbelSoftmaxStructure:
        """Return a posterior that starts without a favourite."""
        if self.posterior == "dirichlet":
            return GumbelSoftmaxStructure.dirichlet(program, slot=slot.name)
        return GumbelSoftmaxStructure.gumbel_softmax(
            program, slot=slot.name, corners=False, schedule="trained", start=1.0, end=1.0
        )


@structured
@dataclass(frozen=True)
class SoftmaxStructure(_StructurePrior):
    r"""Normal scores of primitives, :math:`\gamma = \mathrm{softmax}(\alpha)`, fitted as a point.

    .. math:: \alpha_k \sim N(\log s_k - \lambda_n n_k, \tau^2)

    Parameters
    ----------
    scale
        :math:`\tau`.
    s, penalty
        As for `GumbelSoftmax`.
    """

    scale: float = 1.0
    s: tuple[float, ...] = ()
    penalty: float = 0.0

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "scale": constraints.interval(1e-6, 1e6),
        "penalty": constraints.interval(0.0, 1e6),
    }

    def program(self, slot: Slot) -> "SoftmaxProgram":
        """Return the program with the one site ``{slot}_logits``."""
        return SoftmaxProgram(slot, self.log_favours(slot), self.scale)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> Darts:
        """Return scores that are a point, and start at the prior's."""
        return Darts(program, slot=slot.name)


class SoftmaxProgram(Program):
    """Pyro program of normal scores."""

    loc: Tensor
    scale: Tensor

    def __init__(self, slot: Slot, loc: Tensor, scale: float) -> None:
        super().__init__(slot)
        self.register_buffer("loc", loc)
        self.register_buffer("scale", loc.new_tensor(scale))

    def forward(self) -> Tensor:
        """Sample the scores and return the weights."""
        law = dist.Normal(self.loc, self.scale).to_event(1)
        scores = pyro.sample(f"{self.slot_name}_logits", law)
        return self.named(torch.softmax(scores, dim=-1))


class StructureProgram(Program):
    """Pyro program of the structure of one mixture.

    Parameters
    ----------
    slot
        The weights of the mixture.
    law
        Distribution of the coordinates.
    space, points
        As for `GumbelSoftmax`.
    **parameters
        Parameters of the law; they are buffers.
    """

    def __init__(
        self, slot: Slot, law: Any, space: Space, points: Points, **parameters: Tensor
    ) -> None:
        super().__init__(slot)
        self.make, self.space, self.points = law, space, points
        self.parameter_names = list(parameters)
        for name, value in parameters.items():
            self.register_buffer(name, value)

    @property
    def site(self) -> str:
        """Name of the site."""
        return f"{self.slot_name}_logits"

    def law(self) -> Any:
        """Return the prior of the coordinates."""
        held = {name: getattr(self, name) for name in self.parameter_names}
        return self.make(**held, validate_args=False)

    def forward(self) -> Tensor:
        """Sample the coordinates and return the weights."""
        law = self.law()
        coordinates = pyro.sample(self.site, law.to_event(len(law.batch_shape)))
        return self.named(self.weights(coordinates))

    def weights(self, coordinates: Tensor) -> Tensor:
        """Return the weights of primitives that coordinates stand for."""
        weights = log_weights(coordinates).exp()
        if self.points == "vertices":
            largest = weights == weights.amax(-1, keepdim=True)
            # The value is rounded, the gradient is that of the weights.
            weights = largest.to(weights.dtype) + (weights - weights.detach())
        return weights[..., 0] if self.space == "cube" else weights
