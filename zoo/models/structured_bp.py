r"""Structured Bayesian pruning: multiplicative noise says which units and filters can be removed.

What enters a layer is multiplied unit by unit (channel by channel for a convolution). The weights
are points, trained by maximum likelihood; the multipliers are random:

.. math::
    y_i = \theta_i x_i, \qquad \log\theta_i \sim \mathrm{Uniform}(a, b), \qquad
    q(\log\theta_i) = N(\mu_i, \sigma_i^2) \text{ truncated to } [a, b]

with :math:`a = -20` and :math:`b = 0`. With :math:`\alpha = (a - \mu)/\sigma`, :math:`\beta = (b -
\mu)/\sigma` and :math:`Z = \Phi(\beta) - \Phi(\alpha)`,

.. math::
    \mathrm{KL} = \log(b - a) - \log(\sigma Z) - \tfrac12 \log(2\pi e)
        - \frac{\alpha\phi(\alpha) - \beta\phi(\beta)}{2 Z}

A unit is kept if the signal-to-noise ratio :math:`E\theta / \sqrt{V\theta}` is above one. The
multiplier stands behind the nonlinearity, so a unit that is removed has said nothing but zero. One
draw of the multipliers serves a whole batch, as in the published training.

Use it to make a network smaller by whole units, inputs among them, at little cost in accuracy.
Another place is a matter of patterns: ``--prior '2.output=StructuredBP()'`` adds noise behind
module 2, ``--bayesian '2.input'`` leaves no other noise than that. ``--option
'kl_scale[0.input]=10'`` weighs the divergence of a layer ten times (the variant
called SBPa, with 10 and 5 for early convolutions): it prunes harder, and the objective is no longer
a bound on the evidence.

It fails, or means little, in these cases. The weights have no prior, so they can overfit and the
uncertainty of a prediction is that of the multipliers alone; do not read it as that of a Bayesian
network. From its quiet start it learns shuffled labels by heart, and the objective is better for
it; a loud one, ``--init-scale 1 --kl-warmup 0``, lets nothing through that the noise would drown.
The weights can grow to make up for small multipliers, since nothing holds them back. Noise
in front of batch normalisation is divided out again: place it behind. From an untrained network and
with the full divergence from the first step on, all units can be lost before anything is learned;
the recipe phases it in. A unit at the lower bound has a steady multiplier of almost nothing and a
ratio above one; it is removed by a second rule, on the mean, which is ours.

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
        description="Weight of the divergence in the objective. Above one more units are pruned, "
        "and the objective is no longer a bound on the evidence; the model stays the same.",
    )


class StructuredBP(SlotPrior):
    r"""Multipliers between almost nothing and one, uniform in the logarithm.

    .. math:: \log\theta_i \sim \mathrm{Uniform}(a, b)

    It is proper. The posterior is a truncated log-normal, whose divergence has a closed form.

    Parameters
    ----------
    low, high
        Bounds :math:`a < b` of :math:`\log\theta`.
    group
        ``unit``: a multiplier for each unit or channel; ``layer``: one for all of them.

    References
    ----------
    Neklyudov, Molchanov, Ashukha and Vetrov (2017), *Structured Bayesian Pruning via Log-Normal
    Multiplicative Noise*.
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
        """Refuse bounds in the wrong order."""
        low, high = parameters["low"], parameters["high"]
        if low >= high:
            raise PriorError(
                f"StructuredBP needs low < high, the bounds of the logarithm. "
                f"Got low={low:g}, high={high:g}."
            )

    def setup(self) -> None:
        """Refuse a slot whose values do not multiply activations."""
        if self.slot.layer != "activation":
            raise PriorError(
                f"StructuredBP is a prior of noise on activations, such as 0.input, and not of "
                f"{self.slot.name!r}."
            )

    @property
    def start(self) -> Tensor:
        """Where the multipliers start: at the upper bound."""
        return self.slot.value.new_full(self.shape, self.high).exp()

    @property
    def shape(self) -> torch.Size:
        """One multiplier for each unit, or one for all."""
        return torch.Size([1]) if self.group == "layer" else self.slot.shape

    def model(self) -> Tensor:
        r"""Sample the multipliers :math:`\theta_i`.

        The network multiplies what enters a layer by them (`zoo.network.activations`).
        """
        prior = TruncatedLogUniform(self.number(self.low), self.number(self.high))
        theta: Tensor = pyro.sample(self.slot.name, prior.expand(self.shape).to_event(1))
        return theta

    def guide(self, init_scale: float) -> Guide:
        """Return truncated log-normal multipliers that start at the upper bound."""
        return StructuredBPGuide(
            self.slot.name,
            self.start,
            low=self.low,
            high=self.high,
            kl_scale=self.settings.kl_scale,
            init_scale=init_scale,
        )

    @property
    def is_bounded(self) -> bool:
        """The parameters of the posterior are kept where they have gradients."""
        return True

    def after_update(self, guide: Guide) -> None:
        """Keep the posterior where it has gradients."""
        if isinstance(guide, StructuredBPGuide):
            guide.w.constrain()


@register(
    priors={"*.input": "StructuredBP(low=-20, high=0)"},
    # The multipliers start as good as fixed at one (a log standard deviation of -5).
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.25, init_scale=0.0067),
    reference="Neklyudov, Molchanov, Ashukha and Vetrov (2017), Structured Bayesian Pruning via "
    "Log-Normal Multiplicative Noise",
    exactness="mean_field",
    analytic_kl=True,
    compresses=True,
)
class StructuredBPMethod(Method):
    """Log-uniform multipliers of the inputs of every layer, weights as points."""
