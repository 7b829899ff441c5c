"""One weight tensor with independent Gaussian elements, each of which is a group."""

import torch
from torch import Tensor

from guides.slot import LocScale, SlotGuide

#: Keeps the logarithm of a squared mean finite; also used in the divergence.
EPSILON = 1e-16


def log_dropout_rate(loc: Tensor, log_scale: Tensor) -> Tensor:
    r"""Return :math:`\log\alpha = \log(\sigma^2 / \mu^2)`, in double precision."""
    return 2 * log_scale.double() - (loc.double().square() + EPSILON).log()


class Elementwise(SlotGuide):
    """Base of guides with one Gaussian site, the weights ``self.w``; every weight is a group."""

    w: LocScale

    @property
    def group_shape(self) -> torch.Size:
        """Shape of one number per group: that of the weights."""
        return self.w.loc.shape

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the weights."""
        return self.w.loc.double(), (2 * self.w.log_scale.double()).exp()
