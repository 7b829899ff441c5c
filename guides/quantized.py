"""Quantized: Gaussian weights that move to the words of a codebook.

Achterhold, Köhler, Schmeink and Genewein (2018), *Variational Network Quantization*.
"""

import math

import pyro
import torch
from torch import Tensor

from guides.slot import LocScale, SlotGuide

#: Distance of the words of the published codebook, [-0.2, 0, 0.2]; bounds are relative to it.
REFERENCE_GAP = 0.2
#: Range of the log variance at that distance.
LOG_VARIANCE = (-10.0, 1.0)
#: A weight is pruned when its log alpha, log(variance / mean²), is at least this.
PRUNED_LOG_ALPHA = 3.0


class QuantizedGuide(SlotGuide):
    r"""Posterior :math:`N(\theta_{ij}, \sigma_{ij}^2)` of a weight tensor with a codebook.

    Distances are relative to the smallest distance between code words, so that every codebook is
    treated like the published one: :math:`\log\sigma^2` stays between -10 and 1, and :math:`\theta`
    between the outer code words and :math:`e^{-3/2} \sigma` beyond them.

    Parameters
    ----------
    slot, init
        Name of the weight tensor, and initial :math:`\theta` in units of the codebook.
    codebook
        Code words of the site.
    init_scale
        Initial :math:`\sigma`, for the published codebook.
    max_sd
        Largest :math:`\sigma`, as a fraction of the smallest distance between code words; None for
        the published bound.
    """

    codebook: Tensor

    def __init__(
        self,
        slot: str,
        init: Tensor,
        *,
        codebook: Tensor,
        init_scale: float,
        max_sd: float | None = None,
    ) -> None:
        super().__init__(slot)
        self.init_scale = init_scale
        low, high = (0.5 * bound for bound in LOG_VARIANCE)
        if max_sd is not None:
            high = min(high, math.log(max_sd * REFERENCE_GAP))
        self.log_scale_bounds = (min(low, high), high)
        self.base = LocScale(init, init_scale)
        self.register_buffer("codebook", codebook.clone())

    def guide(self) -> None:
        """Sample the weights in units of the codebook."""
        pyro.sample(self.site("base"), self.base.normal())

    @torch.no_grad()
    def restart(self) -> None:
        """Reset the scales of pretrained weights to their initial value, and constrain them."""
        self.base.log_scale.copy_(math.log(self.init_scale) + self._log_stretch())
        self.constrain()

    @torch.no_grad()
    def constrain(self) -> None:
        """Move locations and scales to the nearest allowed values."""
        loc, log_scale = self.base.loc, self.base.log_scale
        low, high = (bound + self._log_stretch() for bound in self.log_scale_bounds)
        torch.clamp(log_scale, low, high, out=log_scale)
        beyond = (log_scale - PRUNED_LOG_ALPHA / 2).exp_()
        torch.clamp(loc, self.codebook.min() - beyond, self.codebook.max() + beyond, out=loc)

    def _log_stretch(self) -> Tensor:
        return (self.codebook.sort().values.diff().min() / REFERENCE_GAP).log()

    @torch.no_grad()
    def quantized(self) -> Tensor:
        r"""Return the code word of every weight.

        Zero where :math:`\log(\sigma^2 / \theta^2) \ge 3`; elsewhere the nearest one, which is the
        one with the largest density :math:`N(c_k \mid \theta, \sigma^2)`.
        """
        loc, log_scale = self.base.loc, self.base.log_scale
        pruned = loc.abs() <= (log_scale - PRUNED_LOG_ALPHA / 2).exp()
        words = self.codebook[nearest(loc, self.codebook)]
        return torch.where(pruned, torch.zeros_like(loc), words)


def nearest(values: Tensor, codebook: Tensor) -> Tensor:
    """Return the index of the nearest code word of every value."""
    return (values.unsqueeze(-1) - codebook).abs().argmin(-1)


def fitted_size(values: Tensor, words: Tensor, *, num_rounds: int = 30) -> Tensor:
    r"""Return the factor that brings code words nearest to values.

    Minimises :math:`\sum_i (v_i - s\, c_{k(i)})^2` over :math:`s` and the assignments :math:`k(i)`
    in turn (Lloyd's algorithm). Initially the outer words are at twice the mean absolute value. If
    all values are zero, the words stay as they are.
    """
    size = 2 * values.abs().mean() / words.abs().max()
    for _ in range(num_rounds):
        chosen = words[nearest(values, size * words)]
        square = chosen.square().sum()
        size = torch.where(square > 0, (values * chosen).sum() / square, size)
    return torch.where(size > 0, size, torch.ones_like(size))
