"""The prior of variational network quantization, with a codebook that is fixed or learned."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import constraints

import zoo.distributions as densities
from guides.base import Guide
from guides.quantized import REFERENCE_GAP, Quantized, fitted_size
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.program import Program, constant
from zoo.priors.structured import StructuredPrior, structured

#: A learned codebook does not shrink below a quarter of its start (published: from 0.2 to 0.05).
SMALLEST_GROWTH = math.log(0.25)


@structured
@dataclass(frozen=True)
class Quantizing(StructuredPrior):
    r"""A log-uniform spike at every code word.

    .. math:: p(w) \propto \sum_k \frac{1}{|w - s c_k|}

    The size :math:`s` is one number per slot. The prior is improper: only differences of the ELBO
    mean something, and it cannot be sampled.

    Parameters
    ----------
    codebook
        The code words :math:`c_k`, zero among them.
    size
        ``fixed``: :math:`s = 1`. ``learned``: it starts at one and is trained with the weights.
        ``fitted``: it starts where the code words are nearest to the pretrained weights, and is
        trained.
    max_sd
        Bound of the posterior standard deviations, as a share of the smallest distance between code
        words. Without one the divergence buys noise where it should move weights, and a
        convolutional network can drown in it. The published bound is 8.

    References
    ----------
    Achterhold, Köhler, Schmeink and Genewein (2018), *Variational Network Quantization*.
    """

    is_improper: ClassVar[bool] = True
    makes_noise: ClassVar[bool] = True

    codebook: tuple[float, ...] = (-0.2, 0.0, 0.2)
    size: Literal["fixed", "learned", "fitted"] = "fixed"
    max_sd: float | None = None

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "max_sd": constraints.interval(1e-6, 1e6)
    }

    def __post_init__(self) -> None:
        try:
            words = torch.tensor(self.codebook, dtype=torch.float64)
            densities.Quantizing(words, validate_args=True)
        except ValueError as error:
            shown = ", ".join(f"{word:g}" for word in self.codebook)
            raise PriorError(
                f"Quantizing(codebook=[{shown}]) does not exist: {' '.join(str(error).split())}"
            ) from None

    def program(self, slot: Slot) -> "QuantizingProgram":
        """Return the program with one site, the weights in units of the codebook."""
        return QuantizingProgram(slot, self)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> Quantized:
        """Gaussian weights that stay near the codebook."""
        assert isinstance(program, QuantizingProgram)
        return Quantized(
            program,
            slot=slot.name,
            codebook=program.words,
            init=slot.value / program.unit,
            init_scale=init_scale,
            max_sd=self.max_sd,
        )


class QuantizingProgram(Program):
    r"""Pyro program of `Quantizing` for one slot, :math:`w_{ij} = s \tilde w_{ij}`.

    The site is :math:`\tilde w`, whose code words are at the published distance of 0.2 for every
    codebook; the divergence does not depend on :math:`s`. A step of the optimizer is then the same
    share of a codebook in every layer, and weights that have found their code word stay on it when
    :math:`s` changes, so that it can be learned as fast as they are. In coordinates of the weights
    themselves, as published, it has to be a hundred times slower.
    """

    is_constrained = True
    words: Tensor
    unit: Tensor

    def __init__(self, slot: Slot, prior: Quantizing) -> None:
        super().__init__(slot)
        given = constant(prior.codebook, slot.value)
        gap = given.sort().values.diff().min()
        self.register_buffer("words", given * (REFERENCE_GAP / gap))
        self.is_fitted = prior.size == "fitted"
        # Weights that a codebook is yet to be fitted to are in their own units.
        self.register_buffer(
            "unit", torch.ones_like(gap) if self.is_fitted else gap / REFERENCE_GAP
        )
        self.growth = None if prior.size == "fixed" else nn.Parameter(torch.zeros_like(gap))

    def size(self) -> Tensor:
        """Return what the weights of the site are multiplied by."""
        return self.unit if self.growth is None else self.unit * self.growth.exp()

    def codebook(self) -> Tensor:
        """Return the code words in use."""
        return self.words * self.size()

    def forward(self) -> Tensor:
        """Sample the weights."""
        prior = densities.Quantizing(self.words).expand(self.slot_shape)
        base = pyro.sample(f"{self.slot_name}_base", prior.to_event(len(self.slot_shape)))
        return self.named(base * self.size())

    def quantized(self, part: Quantized) -> Tensor:
        """Return the code word of every weight."""
        return part.quantized() * self.size()

    @torch.no_grad()
    def start(self, part: Guide) -> None:
        """Fit the size of the codebook to pretrained weights, and let their posterior start."""
        if not isinstance(part, Quantized):
            return
        if self.is_fitted and self.growth is not None:
            weights = part.weights.loc * self.size()
            self.unit.copy_(fitted_size(weights, self.words))
            self.growth.zero_()
            part.weights.loc.copy_(weights / self.unit)
        part.restart()

    @torch.no_grad()
    def constrain(self, part: Guide) -> None:
        """Keep the codebook from collapsing, and the weights in its range."""
        if self.growth is not None:
            self.growth.clamp_(min=SMALLEST_GROWTH)
        if isinstance(part, Quantized):
            part.constrain()
