r"""Variational network quantization: weights end on a few code words, by default three.

Model and posterior, for every weight :math:`w_{ij}` of a layer with code words :math:`s c_k \in
\{-a, 0, a\}`:

.. math::
    p(w_{ij}) \propto \sum_k \frac{1}{|w_{ij} - s c_k|}, \qquad
    q(w_{ij}) = N(\theta_{ij}, \sigma_{ij}^2)

The divergence from one spike is that of a log-uniform prior, :math:`\mathrm{KL}_{LU}`. From all
spikes it is approximated with windows :math:`\Omega(t) = e^{-t^2 / 2\tau^2}`, :math:`\tau =
0.375\,a`:

.. math::
    \mathrm{KL} \approx \sum_{k: c_k \ne 0} \Omega(\theta - s c_k)
    \mathrm{KL}_{LU}(\theta - s c_k, \sigma)
    + \Bigl[1 - \sum_{k: c_k \ne 0} \Omega(\theta - s c_k)\Bigr] \mathrm{KL}_{LU}(\theta, \sigma)

The site is :math:`\tilde w = w / s`, whose code words are always at the published distance of 0.2.
The divergence then does not depend on :math:`s`, which the likelihood alone determines, and an
optimizer step is the same fraction of a codebook in every layer. The objective is the published one
in other coordinates: weights on a code word stay on it while :math:`s` changes, so :math:`s` is
learned as fast as the weights. The published recipe, in coordinates of the weights themselves,
needs a learning rate for :math:`s` that is a hundred times smaller.

The network is pretrained without the divergence. Then :math:`s` is set so that the code words are
nearest to the weights of each layer, and the weight of the divergence rises to one. After the fit a
weight with :math:`\log(\sigma^2 / \theta^2) \ge 3` becomes zero, and any other its nearest code
word. ``Fit.quantize()`` returns that network; its scores are reported beside those of the
continuous one. Biases have standard normal priors and keep their precision.

Use it to store a network in two bits per weight, or to see how much precision it needs. Other
codebooks are set by the prior: ``--prior '*.weight=Quantized([-2, -1, 0, 1, 2], size=fitted)'``
fits five words, ``size=fixed`` takes the words as given. Use ``--pretrain 0`` for a network that is
already pretrained.

It is a regulariser rather than a posterior. The prior is improper, so there is no evidence, and the
approximate divergence is up to 1.07 nats per weight below the exact one, worst on the code words.
Its uncertainties are those of weights pulled to code words and should not be trusted. A codebook
that is too coarse, too short a warm-up or too few steps show only in the quantized network, which
is why both are scored. The noise that the divergence adds can dominate convolutional networks;
``--option max_sd=0.1`` bounds it.

Reference: Achterhold, Köhler, Schmeink and Genewein (2018), *Variational Network Quantization*,
ICLR.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pyro
import torch
from pydantic import Field
from torch import Tensor, nn

from guides.base import Guide
from guides.quantized import REFERENCE_GAP, QuantizedGuide, fitted_size
from zoo.distributions import Quantizing
from zoo.errors import PriorError
from zoo.network.method import Method
from zoo.priors import Options, SlotPrior
from zoo.priors.slot_prior import constant
from zoo.registry import ExpectedFailure, Recipe, register

#: A learned codebook shrinks to a quarter of its initial size at most (published: 0.2 to 0.05).
SMALLEST_GROWTH = math.log(0.25)


class QuantizedOptions(Options):
    """Settings of the guide."""

    max_sd: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        description="Bound of the posterior sds, as a fraction of the smallest distance between "
        "code words. Without one the divergence adds noise instead of moving weights, which can "
        "ruin a convolutional network. The published bound is 8.",
    )


class Quantized(SlotPrior):
    """A log-uniform spike at every code word. It is improper and cannot be sampled.

    Parameters
    ----------
    codebook
        The code words :math:`c_k`, including zero.
    size
        The size :math:`s` of the slot's codebook. ``fixed``: one. ``learned``: initially one, and
        trained with the weights. ``fitted``: initially such that the code words are nearest to the
        pretrained weights, and trained.
    """

    codebook: tuple[float, ...] = (-0.2, 0.0, 0.2)
    size: Literal["fixed", "learned", "fitted"] = "fixed"

    options: ClassVar[type[Options]] = QuantizedOptions
    is_improper: ClassVar[bool] = True
    makes_noise: ClassVar[bool] = True
    old_names: ClassVar[tuple[str, ...]] = ("Quantizing",)
    moved_parameters: ClassVar[tuple[str, ...]] = ("max_sd",)

    words: Tensor
    unit: Tensor
    growth: nn.Parameter | None

    @classmethod
    def check(cls, parameters: Mapping[str, Any]) -> None:
        """Reject a codebook without zero or with a repeated word."""
        codebook = parameters["codebook"]
        try:
            Quantizing(torch.tensor(codebook, dtype=torch.float64), validate_args=True)
        except ValueError as error:
            shown = ", ".join(f"{word:g}" for word in codebook)
            raise PriorError(
                f"Quantized(codebook=[{shown}]) is not valid: {' '.join(str(error).split())}"
            ) from None

    def setup(self) -> None:
        """Make the code words of the site, and their size."""
        given = constant(self.codebook, self.slot.value)
        gap = given.sort().values.diff().min()
        self.is_fitted = self.size == "fitted"
        self.register_buffer("words", given * (REFERENCE_GAP / gap))
        # Until the codebook is fitted, weights are in their own units.
        unit = torch.ones_like(gap) if self.is_fitted else gap / REFERENCE_GAP
        self.register_buffer("unit", unit)
        self.growth = None if self.size == "fixed" else nn.Parameter(torch.zeros_like(gap))

    def model(self) -> Tensor:
        """Sample the weights in units of the codebook, and return them in their own."""
        base = pyro.sample(self.site("base"), self.elements(Quantizing(self.words)))
        weights: Tensor = base * self.scale()
        return weights

    def scale(self) -> Tensor:
        """Return the size of the codebook, the factor from the site to the weights."""
        return self.unit if self.growth is None else self.unit * self.growth.exp()

    def code_words(self) -> Tensor:
        """Return the code words in use."""
        return self.words * self.scale()

    def guide(self, init_scale: float) -> Guide:
        """Return Gaussian weights that stay near the codebook."""
        return QuantizedGuide(
            self.slot.name,
            self.slot.value / self.unit,
            codebook=self.words,
            init_scale=init_scale,
            max_sd=self.settings.max_sd,
        )

    def quantized(self, guide: QuantizedGuide) -> Tensor:
        """Return the code word of every weight."""
        return guide.quantized() * self.scale()

    @property
    def is_bounded(self) -> bool:
        """The weights stay in the range of the codebook."""
        return True

    @torch.no_grad()
    def after_pretraining(self, guide: Guide) -> None:
        """Fit the size of the codebook to pretrained weights, and restart their posterior."""
        if not isinstance(guide, QuantizedGuide):
            return
        if self.is_fitted and self.growth is not None:
            weights = guide.base.loc * self.scale()
            self.unit.copy_(fitted_size(weights, self.words))
            self.growth.zero_()
            guide.base.loc.copy_(weights / self.unit)
        guide.restart()

    @torch.no_grad()
    def after_update(self, guide: Guide) -> None:
        """Keep the codebook from collapsing, and the weights in its range."""
        if self.growth is not None:
            self.growth.clamp_(min=SMALLEST_GROWTH)
        if isinstance(guide, QuantizedGuide):
            guide.constrain()


@register(
    priors={"*": "Normal(0, 1)", "*weight": "Quantized(codebook=[-0.2, 0, 0.2], size=fitted)"},
    # As published: log-variances start at -8 (a standard deviation of 0.018) at a codebook of 0.2,
    # the learning rate falls linearly to zero.
    recipe=Recipe(
        num_steps=4000,
        batch_size=128,
        lr=2e-3,
        schedule="linear",
        pretrain=0.15,
        kl_warmup=0.25,
        init_scale=0.0183,
    ),
    reference="Achterhold, Köhler, Schmeink and Genewein (2018), Variational Network Quantization",
    expected_failures={
        "reaches_its_own_optimum": ExpectedFailure(
            "can be raised by",
            "the loss has the published approximation of the divergence, which is up to 1.07 nats "
            "per weight below the exact one",
        ),
        "kl_is_exact": ExpectedFailure(
            "KL in the loss / exact KL",
            "the divergence is the published approximation of an improper prior's",
        ),
    },
)
class QuantizedMethod(Method):
    """A codebook for the weights of each layer, normal priors on biases."""
