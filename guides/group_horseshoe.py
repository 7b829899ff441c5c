"""Group horseshoe: log-normal scales, Gaussian standardised weights, and what they imply."""

import math
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from guides.mean_field import MeanField

#: The four scale sites of a slot: two global, two per group.
SCALE_SITES = ("global_a", "global_b", "local_a", "local_b")


class GroupHorseshoe(MeanField):
    r"""Posterior of one weight tensor under a group horseshoe prior.

    .. math::
        w_{ij} = \tilde w_{ij} z_i, \quad z_i = \sqrt{s_a s_b \tilde\alpha_i \tilde\beta_i}, \quad
        q(\tilde w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)

    with a log-normal for each scale, so that :math:`\log z_i` is Gaussian with mean
    :math:`m_i = \frac12 \sum \mu` and variance :math:`v_i = \frac14 \sum \sigma^2` over the four
    scales. Global scales start at :math:`\mu_{s_a} = 2\log\tau_0`, :math:`\mu_{s_b} =
    -2\log\tau_0`, which makes :math:`z_i = 1` at the start and keeps the ELBO meaningful from the
    first step.

    Parameters
    ----------
    program
        Pyro program with the sites ``{slot}_global_a``, ``_global_b``, ``_local_a``, ``_local_b``
        and ``_base``.
    slot
        Name of the weight tensor.
    global_scale
        The prior's :math:`\tau_0`.
    group_shape
        Shape of one scale per group, broadcastable against the weights.
    init, init_scale
        As for `MeanField`.

    References
    ----------
    Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        slot: str,
        global_scale: float,
        group_shape: torch.Size,
        init: Mapping[str, Tensor],
        init_scale: float = 0.01,
    ) -> None:
        base = init[f"{slot}_base"]
        log_scale = math.log(global_scale)
        starts = {
            f"{slot}_global_a": base.new_tensor(2 * log_scale).exp(),
            f"{slot}_global_b": base.new_tensor(-2 * log_scale).exp(),
            f"{slot}_local_a": base.new_ones(group_shape.numel()),
            f"{slot}_local_b": base.new_ones(group_shape.numel()),
        }
        super().__init__(program, init={**starts, **init}, init_scale=init_scale)
        self.slot = slot
        self.group_shape = group_shape

    def log_scale_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the logarithm of each group's scale, shape ``(groups,)``."""
        posteriors = [self[f"{self.slot}_{name}"] for name in SCALE_SITES]
        means = [p.loc.double() for p in posteriors]
        variances = [(2 * p.log_scale.double()).exp() for p in posteriors]
        return reduce(add, means) / 2, reduce(add, variances) / 4

    def group_scores(self) -> Tensor:
        """Minus the log of the mode of each group's scale, :math:`v_i - m_i`: large for noise."""
        mean, variance = self.log_scale_moments()
        return variance - mean

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        r"""Marginal mean and variance of the weights.

        .. math::
            E w = e^{m + v/2} \mu, \quad
            V w = (e^v - 1) e^{2m + v} (\sigma^2 + \mu^2) + \sigma^2 e^{2m + v}
        """
        m, v = (moment.reshape(self.group_shape) for moment in self.log_scale_moments())
        base = self[f"{self.slot}_base"]
        loc, variance = base.loc.double(), (2 * base.log_scale.double()).exp()
        scale_square = (2 * m + v).exp()
        mean = (m + v / 2).exp() * loc
        spread = torch.expm1(v) * scale_square * (variance + loc.square())
        return mean, spread + variance * scale_square
