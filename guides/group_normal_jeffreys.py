"""Group normal-Jeffreys: Gaussian group scales and weights, and what they imply."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from guides.elementwise import log_dropout_rate
from guides.mean_field import MeanField


class GroupNormalJeffreys(MeanField):
    r"""Posterior of one weight tensor under a group normal-Jeffreys prior.

    .. math::
        w_{ij} = z_i \tilde w_{ij}, \quad q(z_i) = N(\mu_{z_i}, \sigma_{z_i}^2), \quad
        q(\tilde w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)

    which is :math:`q(w_{ij} \mid z_i) = N(z_i \mu_{ij}, z_i^2 \sigma_{ij}^2)`. Means and log
    standard deviations of the scales are the parameters, not :math:`\alpha_i = \sigma_{z_i}^2 /
    \mu_{z_i}^2`, whose gradient is noise for groups that are switched off. Scales start at one.

    Parameters
    ----------
    program
        Pyro program with the sites ``{slot}_z`` and ``{slot}_base``.
    slot
        Name of the weight tensor.
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
        group_shape: torch.Size,
        init: Mapping[str, Tensor],
        init_scale: float = 0.01,
    ) -> None:
        ones = init[f"{slot}_base"].new_ones(group_shape.numel())
        super().__init__(program, init={f"{slot}_z": ones, **init}, init_scale=init_scale)
        self.slot = slot
        self.group_shape = group_shape

    def group_scores(self) -> Tensor:
        r"""Return :math:`\log\alpha_i` of every group's scale: large for noise."""
        scales = self[f"{self.slot}_z"]
        return log_dropout_rate(scales.loc, scales.log_scale)

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        r"""Marginal mean and variance of the weights.

        .. math::
            E w = \mu_z \mu, \quad V w = \sigma_z^2 (\sigma^2 + \mu^2) + \sigma^2 \mu_z^2
        """
        scales, base = self[f"{self.slot}_z"], self[f"{self.slot}_base"]
        z = scales.loc.double().reshape(self.group_shape)
        z_variance = (2 * scales.log_scale.double()).exp().reshape(self.group_shape)
        loc, variance = base.loc.double(), (2 * base.log_scale.double()).exp()
        spread = z_variance * (variance + loc.square())
        return z * loc, spread + variance * z.square()
