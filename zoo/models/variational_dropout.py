r"""Variational dropout: Gaussian dropout whose rates are learned instead of tuned.

The inputs of a layer are multiplied unit by unit (channel by channel for a convolution) by Gaussian
noise. The weights are points, trained by maximum likelihood. The noise has a log-uniform prior, and
its variance :math:`\alpha` is learned, one for each layer:

.. math::
    y_i = s_i x_i, \qquad p(s_i) \propto |s_i|^{-1}, \qquad q(s_i) = N(1, \alpha), \quad
    0 < \alpha \le 1

.. math::
    \mathrm{KL}(\alpha) = u\, {}_2F_2(1, 1; \tfrac32, 2; -u), \quad u = \frac{1}{2\alpha}

The loss uses the approximation of `sparse_vd`, whose error is below 0.01 nats. The constant of the
improper prior is chosen so that the KL vanishes for :math:`\alpha \to \infty`. A rate :math:`p` of
Bernoulli dropout corresponds to :math:`\alpha = p / (1 - p)`. In training every row has its own
noise; a posterior draw is one function, with the same noise for all rows.

The prior is on the noise, not on the weights. The weights that leave one unit share its noise, so
as a posterior of the weights it would be degenerate, with an infinite KL. ``--bayesian '*.weight'
--prior '*.weight=VariationalDropout()'`` gives the version with independent noise on each weight,
:math:`q(w_{ij}) = N(\mu_{ij}, \alpha\mu_{ij}^2)` under :math:`p(w) \propto |w|^{-1}`. A rate is
shared by a ``layer`` or a ``unit``, or not at all (``--option share=element``); ``--option
share=fixed --option p=0.3`` fixes it, which is Gaussian dropout.

Use it in place of dropout when the rate should not be tuned. It does not prune: rates end at 0.5 at
most. Under the improper prior the posterior does not exist (Hron, Matthews and Ghahramani, 2018),
so the ELBO is not a bound on an evidence, only its differences are meaningful, and NUTS needs the
proper ``SmoothLogUniform``. The KL decreases in :math:`\alpha` whatever the data: with many units
or weights and few rows the rates reach their bound, especially with one KL term per weight, and the
fit is too smooth. The shape of the noise is fixed, so uncertainty away from the data reflects only
the extrapolation of the network.

Reference: Kingma, Salimans and Welling (2015), *Variational Dropout and the Local
Reparameterization Trick*, NIPS.
"""

from typing import ClassVar, Literal

import pyro
import torch
from pydantic import Field
from torch import Tensor

from guides.base import Guide
from guides.variational_dropout import VariationalDropoutGuide
from zoo.distributions import LogUniform
from zoo.errors import ConfigError
from zoo.network.method import Method
from zoo.priors import Options, SlotPrior
from zoo.registry import SMALL_PROBLEM, ExpectedFailure, Recipe, register


class VariationalDropoutOptions(Options):
    """Settings of the guide."""

    p: float = Field(0.2, ge=1e-6, le=0.999, description="Initial dropout rate.")
    max_p: float = Field(
        0.5,
        ge=1e-6,
        le=0.9999,
        description="Upper bound of the rate; the published one is 0.5, alpha <= 1.",
    )
    share: Literal["layer", "unit", "element", "fixed"] = Field(
        "layer",
        description="What shares a rate: the layer, a unit (for weights the input units of a "
        "linear layer, the filters of a convolution), or nothing (element). With fixed the rate "
        "stays at p, which is plain Gaussian dropout.",
    )


class VariationalDropout(SlotPrior):
    """Log-uniform prior whose posterior is Gaussian dropout. It is improper and cannot be sampled.

    On an activation the posterior mean is one; on a weight it is trained.
    """

    options: ClassVar[type[Options]] = VariationalDropoutOptions
    is_improper: ClassVar[bool] = True
    old_names: ClassVar[tuple[str, ...]] = ("GaussianDropout",)
    moved_parameters: ClassVar[tuple[str, ...]] = ("p", "max_p", "share")

    def model(self) -> Tensor:
        """Sample the noise; the network multiplies what enters a layer by it."""
        s: Tensor = pyro.sample(self.slot.name, self.elements(LogUniform()))
        return s

    def guide(self, init_scale: float) -> Guide:
        """Return a Gaussian whose standard deviation is proportional to its mean."""
        p, max_p, share = self.settings.p, self.settings.max_p, self.settings.share
        rate, learned = _variance(p), share != "fixed"
        if learned and p >= max_p:
            raise ConfigError(f"variational dropout needs p < max_p. Got p={p:g}, max_p={max_p:g}.")
        return VariationalDropoutGuide(
            self.slot.name,
            self.slot.value,
            rate=rate,
            max_rate=_variance(max_p) if learned else 2 * rate,  # a fixed one needs no bound
            rate_shape=self._rate_shape(share),
            learn_mean=self.slot.layer != "activation",
            learn_rate=learned,
        )

    def _rate_shape(self, share: str) -> torch.Size:
        if share == "element":
            return self.slot.shape
        if share == "unit":
            return self.slot.group_shape("auto")
        return torch.Size([1] * len(self.slot.shape))


def _variance(p: float) -> float:
    """Return the variance of the noise that corresponds to a dropout rate."""
    return p / (1 - p)


@register(
    priors={"*.input": "VariationalDropout()"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=3e-3, kl_warmup=0.0),
    reference="Kingma, Salimans and Welling (2015), Variational Dropout and the Local "
    "Reparameterization Trick",
    # NUTS needs a proper prior: between e^-8 and e^2 this one is log-uniform as well.
    small_problem=SMALL_PROBLEM | {"priors": {"*.input": "SmoothLogUniform(-8, 2)"}},
    expected_failures={
        "kl_is_exact": ExpectedFailure(
            "KL in the loss / exact KL",
            "the log-uniform prior is improper: its KL is known up to a constant",
        )
    },
)
class VariationalDropoutMethod(Method):
    """Gaussian noise on the inputs of every layer, weights as points."""
