"""A Normal that is stored by its log standard deviation, as the guides store it."""

from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Normal, constraints
from torch.distributions.kl import register_kl


class LogScaleNormal(dist.Normal):
    r"""Normal distribution with parameters :math:`\mu` and :math:`\log\sigma`.

    The same law as ``Normal(loc, log_scale.exp())``. Knowing the logarithm saves taking it in the
    divergence, and the variance is one exponential instead of an exponential and a square.

    Parameters
    ----------
    loc, log_scale
        Mean and log of the standard deviation.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "loc": constraints.real,
        "log_scale": constraints.real,
    }

    def __init__(
        self, loc: Tensor, log_scale: Tensor, *, validate_args: bool | None = None
    ) -> None:
        self.loc, self.log_scale = torch.broadcast_tensors(loc, log_scale)
        # Normal.__init__ would store a scale; everything below it is what is needed.
        torch.distributions.Distribution.__init__(self, self.loc.shape, validate_args=validate_args)

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        """Standard deviation."""
        scale: Tensor = self.log_scale.exp()
        return scale

    @property
    def stddev(self) -> Tensor:
        """Standard deviation."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """Variance."""
        variance: Tensor = (2 * self.log_scale).exp()
        return variance

    def expand(self, batch_shape: Any, _instance: Any = None) -> "LogScaleNormal":
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return LogScaleNormal(
            self.loc.expand(shape), self.log_scale.expand(shape), validate_args=False
        )


def _kl_log_scale_normal(q: LogScaleNormal, p: Normal) -> Tensor:
    inverse_variance = p.scale.pow(-2)
    square = q.variance + (q.loc - p.loc).square()
    kl: Tensor = 0.5 * (square * inverse_variance - 1) - q.log_scale + p.scale.log()
    return kl


_register: Any = register_kl
_register(LogScaleNormal, Normal)(_kl_log_scale_normal)
