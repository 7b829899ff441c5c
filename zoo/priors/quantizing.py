"""The prior of variational network quantization, with a codebook that is fixed or learned."""

import math
from dataclasses import dataclass
from typing import Literal

import pyro
import torch
from torch import Tensor, nn

import zoo.distributions as densities
from guides.base import Guide
from guides.quantized import Quantized, fitted_size
from zoo.errors import PriorError
from zoo.priors.program import Program, constant
from zoo.priors.structured import StructuredPrior, structured
from zoo.slots import Slot

#: Change of the log size per unit of its parameter. An optimizer then moves a code word of 0.2 by a
#: hundredth of what it moves a weight by, which is the published ratio of the learning rates.
SLOWNESS = 0.05
#: A learned codebook does not shrink below a quarter of its start (published: from 0.2 to 0.05).
SMALLEST_LOG_SIZE = math.log(0.25)


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

    References
    ----------
    Achterhold, Köhler, Schmeink and Genewein (2018), *Variational Network Quantization*.
    """

    codebook: tuple[float, ...] = (-0.2, 0.0, 0.2)
    size: Literal["fixed", "learned", "fitted"] = "fixed"

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
        """Return the program with one site, the weights."""
        return QuantizingProgram(slot, self)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> Quantized:
        """Gaussian weights that stay near the codebook."""
        return Quantized(program, slot=slot.name, init=slot.value, init_scale=init_scale)


class QuantizingProgram(Program):
    """Pyro program of `Quantizing` for one slot."""

    is_constrained = True
    words: Tensor
    size: Tensor

    def __init__(self, slot: Slot, prior: Quantizing) -> None:
        super().__init__(slot)
        self.is_fitted = prior.size == "fitted"
        self.register_buffer("words", constant(prior.codebook, slot.value))
        self.register_buffer("size", slot.value.new_ones(()))
        self.growth = None if prior.size == "fixed" else nn.Parameter(slot.value.new_zeros(()))

    def codebook(self) -> Tensor:
        """Return the code words in use."""
        if self.growth is None:
            return self.words
        return self.words * (self.size * (SLOWNESS * self.growth).exp())

    def forward(self) -> Tensor:
        """Sample the weights."""
        prior = densities.Quantizing(self.codebook()).expand(self.slot_shape)
        value: Tensor = pyro.sample(self.slot_name, prior.to_event(len(self.slot_shape)))
        return value

    @torch.no_grad()
    def start(self, part: Guide) -> None:
        """Fit the size of the codebook to pretrained weights, and let their posterior start."""
        if not isinstance(part, Quantized):
            return
        if self.is_fitted:
            self.size.copy_(fitted_size(part.weights.loc, self.words))
        part.restart(self.codebook())

    @torch.no_grad()
    def constrain(self, part: Guide) -> None:
        """Keep the codebook from collapsing, and the weights in its range."""
        if self.growth is not None:
            self.growth.clamp_(min=SMALLEST_LOG_SIZE / SLOWNESS)
        if isinstance(part, Quantized):
            part.constrain(self.codebook())
