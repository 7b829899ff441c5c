"""Laplace approximation: a Gaussian at the mode whose precision is the curvature there.

MacKay (1992), *A Practical Bayesian Framework for Backpropagation Networks*.
"""

import math
from collections.abc import Mapping

import pyro
import torch
from pyro.distributions import Delta, MultivariateNormal
from torch import Tensor

from guides.base import Guide
from guides.joint import JOINT_SITE, JointGuide
from guides.point import Point


class LaplaceGuide(JointGuide):
    r"""Gaussian :math:`q(u) = N(\hat u, H^{-1})` in unconstrained space.

    During training it is a point :math:`\hat u`, which moves to the mode. `set_precision` then sets
    the curvature :math:`H`, a matrix or, for many unknowns, its diagonal.

    Parameters
    ----------
    parts
        Factorised guides by name of the part; they give the initial point.
    """

    scale_tril: Tensor
    log_evidence: Tensor

    def __init__(self, parts: Mapping[str, Guide]) -> None:
        super().__init__(parts)
        self.has_curvature = False
        loc = next(iter(self.sites().values())).loc
        # Not persistent: its size depends on the state, see `get_extra_state`.
        self.register_buffer("scale_tril", loc.new_zeros(0, 0), persistent=False)
        self.register_buffer("log_evidence", loc.new_full((), math.nan, dtype=torch.float64))
        self.register_load_state_dict_post_hook(_remember_curvature)

    @torch.no_grad()
    def set_precision(self, precision: Tensor, log_joint: float) -> None:
        r"""Set the covariance from the curvature at the mode.

        Parameters
        ----------
        precision
            Hessian :math:`H` of the negative log joint in unconstrained space, or its diagonal.
        log_joint
            The log joint at the mode, for the evidence :math:`\log p(D, \hat u) + \frac{d}{2} \log
            2\pi - \frac12 \log |H|`.

        Raises
        ------
        ValueError
            If the curvature is not positive.
        """
        size = len(precision)
        if precision.dim() == 1:
            if not bool((precision > 0).all()):
                raise ValueError("the curvature is not positive")
            scale, log_volume = precision.rsqrt(), -0.5 * precision.log().sum()
        else:
            tril = _covariance_tril(precision)
            scale, log_volume = tril.square().sum(1).sqrt(), tril.diagonal().log().sum()
            self.scale_tril = tril.to(self.scale_tril)
            self.is_joint = True
        self.set_marginal_scales(scale)
        self.log_evidence.copy_(log_joint + 0.5 * size * math.log(2 * math.pi) + log_volume)
        self.has_curvature = True

    def joint(self) -> MultivariateNormal:
        """Return the Gaussian of all unknowns, whose correlations must be known."""
        return MultivariateNormal(self.mode, scale_tril=self.scale_tril)

    def guide(self) -> None:
        """Sample a point in training, then a Gaussian, with correlations if they are known."""
        if self.is_joint:
            flat = pyro.sample(JOINT_SITE, self.joint(), infer={"is_auxiliary": True})
            self.sample_points(flat, Delta)
        elif self.has_curvature:
            super().guide()
        else:
            self.sample_points(self.mode, Point)

    def metrics(self) -> dict[str, float]:
        """Return the evidence, once the curvature is known."""
        return {"log_evidence": float(self.log_evidence)}

    def get_extra_state(self) -> Tensor:
        """Return the factor of the covariance, which is empty until it is known."""
        return self.scale_tril

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the factor of the covariance."""
        self.scale_tril = state.to(self.scale_tril)
        self.is_joint = len(state) > 0


def _remember_curvature(guide: LaplaceGuide, keys: object) -> None:
    guide.has_curvature = not bool(guide.log_evidence.isnan())


def _covariance_tril(precision: Tensor) -> Tensor:
    """Return the lower triangular L with L Lᵀ = precision⁻¹."""
    # In reversed order, the Cholesky factor of the precision is the inverse of L.
    reversed_tril, failed = torch.linalg.cholesky_ex(precision.flip(0, 1))
    if int(failed):
        raise ValueError("the curvature is not positive definite")
    inverse = reversed_tril.flip(0, 1).T
    identity = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
    tril: Tensor = torch.linalg.solve_triangular(inverse, identity, upper=False)
    return tril
