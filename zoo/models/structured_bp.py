r"""Structured Bayesian pruning: multiplicative noise shows which units and filters can be removed.

The inputs of a layer are multiplied unit by unit (channel by channel for a convolution). The
weights are points, trained by maximum likelihood; the multipliers are random:

.. math::
    y_i = \theta_i x_i, \qquad \log\theta_i \sim \mathrm{Uniform}(a, b), \qquad
    q(\log\theta_i) = N(\mu_i, \sigma_i^2) \text{ truncated to } [a, b]

with :math:`a = -20` and :math:`b = 0`. With :math:`\alpha = (a - \mu)/\sigma`, :math:`\beta = (b -
\mu)/\sigma` and :math:`Z = \Phi(\beta) - \Phi(\alpha)`,

.. math::
    \mathrm{KL} = \log(b - a) - \log(\sigma Z) - \tfrac12 \log(2\pi e)
        - \frac{\alpha\phi(\alpha) - \beta\phi(\beta)}{2 Z}

A unit is kept if the signal-to-noise ratio :math:`E\theta / \sqrt{V\theta}` is above one. The
multiplier comes after the nonlinearity, so the output of a removed unit is exactly zero. All rows
of a batch share one draw of the multipliers, as in the published training.

Use it to make a network smaller by whole units, including inputs, at little cost in accuracy.
Patterns select other activations: ``--prior '2.output=StructuredBP()'`` adds noise after module 2,
``--bayesian '2.input'`` leaves only that noise. ``--option 'kl_scale[0.input]=10'`` weights the
divergence of a layer by ten (the variant SBPa has 10 and 5 for early convolutions): it prunes more
strongly, and the objective is no longer a bound on the evidence.

The weights have no prior, so they can overfit, and predictive uncertainty is that of the
multipliers alone; do not read it as that of a Bayesian network. With the small initial noise of the
recipe it memorises shuffled labels, and its objective improves; with large noise (``--init-scale 1
--kl-warmup 0``) it does not fit them. Unregularised weights can grow to compensate small
multipliers. Batch normalisation cancels noise placed before it; place the noise after it. If an
untrained network has the full divergence from the first step, all units can be lost before anything
is learned; the recipe warms it up. A unit at the lower bound has an almost constant multiplier near
zero and a ratio above one; it is removed by a second rule, on the mean, which is our addition.

Reference: Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via
Log-Normal Multiplicative Noise*, NIPS.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pyro
import torch
from pydantic import Field
from torch import Tensor
from torch.distributions import constraints

from guides.base import Guide
from guides.structured_bp import StructuredBPGuide
from zoo.distributions import TruncatedLogUniform
from zoo.errors import PriorError
from zoo.network.method import Method
from zoo.priors import Options, SlotPrior
from zoo.registry import Recipe, register


class StructuredBPOptions(Options):
    """Settings of the objective."""

    kl_scale: float = Field(
        1.0,
        ge=1e-6,
        le=1e6,
        description="Weight of the divergence in the objective, not in the model. Above one more "
        "units are pruned, and the objective is no longer a bound on the evidence.",
    )


class StructuredBP(SlotPrior):
    r"""Multipliers :math:`\theta` that are uniform in the logarithm.

    Parameters
    ----------
    low, high
        Bounds :math:`a < b` of :math:`\log\theta`.
    group
        ``unit``: a multiplier for each unit or channel; ``layer``: one for all of them.
    """

    low: float = -20.0
    high: float = 0.0
    group: Literal["unit", "layer"] = "unit"

    # The exponentials of both must be normal numbers, also in float32.
    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        "low": constraints.interval(-80.0, 80.0),
        "high": constraints.interval(-80.0, 80.0),
    }
    options: ClassVar[type[Options]] = StructuredBPOptions
    old_names: ClassVar[tuple[str, ...]] = ("LogUniformNoise",)
    moved_parameters: ClassVar[tuple[str, ...]] = ("kl_scale",)

    @classmethod
    def check(cls, parameters: Mapping[str, Any]) -> None:
        """Reject bounds in the wrong order."""
        low, high = parameters["low"], parameters["high"]
        if low >= high:
            raise PriorError(
                f"StructuredBP needs low < high, the bounds of the logarithm. "
                f"Got low={low:g}, high={high:g}."
            )

    def setup(self) -> None:
        """Reject a slot whose values do not multiply activations."""
        if self.slot.layer != "activation":
            raise PriorError(
                f"StructuredBP is a prior of noise on activations, such as 0.input, and not of "
                f"{self.slot.name!r}."
            )

    @property
    def shape(self) -> torch.Size:
        """One multiplier for each unit, or one for all."""
        return torch.Size([1]) if self.group == "layer" else self.slot.shape

    def model(self) -> Tensor:
        r"""Sample the multipliers :math:`\theta_i`, which `zoo.network.activations` applies."""
        prior = TruncatedLogUniform(self.number(self.low), self.number(self.high))
        theta: Tensor = pyro.sample(self.slot.name, prior.expand(self.shape).to_event(1))
        return theta

    def guide(self, init_scale: float) -> Guide:
        """Return truncated log-normal multipliers, initially at the upper bound."""
        return StructuredBPGuide(
            self.slot.name,
            self.slot.value.new_full(self.shape, self.high).exp(),
            low=self.low,
            high=self.high,
            kl_scale=self.settings.kl_scale,
            init_scale=init_scale,
        )

    @property
    def is_bounded(self) -> bool:
        """Whether parameters of the posterior are clamped, which is always the case."""
        return True

    def after_update(self, guide: Guide) -> None:
        """Clamp the posterior to where it has gradients."""
        if isinstance(guide, StructuredBPGuide):
            guide.w.constrain()


@register(
    priors={"*.input": "StructuredBP(low=-20, high=0)"},
    # Initially the multipliers are almost fixed at one (a log standard deviation of -5).
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.0067),
    reference="Neklyudov, Molchanov, Ashukha and Vetrov (2017), Structured Bayesian Pruning via "
    "Log-Normal Multiplicative Noise",
    compresses=True,
)
class StructuredBPMethod(Method):
    """Log-uniform multipliers of the inputs of every layer, weights as points."""
