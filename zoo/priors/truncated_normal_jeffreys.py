"""The proper counterpart of the normal-Jeffreys and log-uniform priors, made for sampling."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
from pyro.distributions import Normal, Uniform
from torch import Tensor
from torch.distributions import constraints

from zoo.errors import PriorError
from zoo.network.slots import Grouping
from zoo.priors.slot_prior import SlotPrior


class TruncatedNormalJeffreys(SlotPrior):
    r"""A log-uniform scale for each group between two bounds: proper, and made for sampling.

    .. math::
        w_{ij} \sim N(0, e^{2 u_i}), \quad u_i \sim \mathrm{Uniform}(a, b)

    Between the bounds it is the prior of `zoo.models.group_normal_jeffreys`; a weight with a scale
    of its own is log-uniform between :math:`e^a` and :math:`e^b`, flat below and Gaussian above
    (`SmoothLogUniform`).

    Parameters
    ----------
    low, high
        Bounds :math:`a < b` of the logarithm of the scale.
    group
        Which weights share a scale.

    References
    ----------
    Hron, Matthews and Ghahramani (2018), *Variational Bayesian dropout: pitfalls and fixes*, on
    why the unbounded prior has no posterior.
    """

    low: float = -8.0
    high: float = 2.0
    group: Grouping = "auto"

    ranges: ClassVar[dict[str, constraints.Constraint]] = {
        # Scales and their squares must be normal numbers, also in float32.
        "low": constraints.interval(-40, 40),
        "high": constraints.interval(-40, 40),
    }

    @classmethod
    def check(cls, parameters: Mapping[str, Any]) -> None:
        """Refuse bounds in the wrong order."""
        low, high = parameters["low"], parameters["high"]
        if not low < high:
            raise PriorError(
                f"TruncatedNormalJeffreys needs low < high, the bounds of the log-scale. "
                f"Got low={low:g}, high={high:g}."
            )

    def model(self) -> Tensor:
        """Sample the log-scale of every group, then the slot."""
        groups = self.groups(self.group)
        bounds = Uniform(self.number(self.low), self.number(self.high))
        log_scale = pyro.sample(self.site("log_scale"), groups.of(bounds))
        weights = Normal(self.zero, groups.spread(log_scale.exp()))
        value: Tensor = pyro.sample(self.slot.name, self.elements(weights))
        return value
