"""SWAG: a Gaussian with the moments of the training trajectory.

Maddox, Izmailov, Garipov, Vetrov and Wilson (2019), *A Simple Baseline for Bayesian Uncertainty in
Deep Learning*.
"""

import math
from collections.abc import Mapping

import pyro
import torch
from pyro.distributions import Delta, LowRankMultivariateNormal
from torch import Tensor

from guides.base import Guide
from guides.joint import JOINT_SITE, JointGuide
from guides.point import Point

#: Smallest variance of an unknown, for those that never moved.
MIN_VARIANCE = 1e-30


class SwagGuide(JointGuide):
    r"""Gaussian of the snapshots of the last part of the training, in unconstrained space.

    During training it is a point, and `collect` updates, over the snapshots :math:`u_1, \dots,
    u_n`, their mean :math:`\bar u`, their variances :math:`\Sigma_d` and the last :math:`K`
    deviations :math:`D = (u_i - \bar u_i)` from the running mean. `finish` turns it into a Gaussian
    with draws

    .. math::
        u = \bar u + \tfrac{1}{\sqrt 2} \Sigma_d^{1/2} z_1 + \tfrac{1}{\sqrt{2 (K - 1)}} D z_2,
        \qquad z_1, z_2 \sim N(0, I)

    With fewer than two snapshots it stays a point.

    Parameters
    ----------
    parts
        Factorised guides by name of the part; they give the initial point.
    rank
        Largest number of deviations that are kept, at least two.
    """

    mean: Tensor
    variance: Tensor
    deviations: Tensor
    num_updates: Tensor
    num_snapshots: Tensor

    def __init__(self, parts: Mapping[str, Guide], *, rank: int = 20) -> None:
        super().__init__(parts)
        start = self.mode.detach()
        self.rank = rank
        self.register_buffer("mean", start.clone())
        self.register_buffer("variance", torch.zeros_like(start))
        self.register_buffer("deviations", start.new_zeros(rank, len(start)))
        for name in ("num_updates", "num_snapshots"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=start.device))

    @torch.no_grad()
    def collect(self, every: int = 1) -> None:
        """Follow an update of the point; one in ``every`` updates is a snapshot.

        Variances use Welford's recursion, which is accurate where they are far smaller than the
        squared means.
        """
        point = self.mode
        self.num_updates += 1
        # Decided by tensors, to avoid waiting for the device: a share of zero changes nothing.
        is_due = self.num_updates % every == 0
        self.num_snapshots += is_due
        share = (is_due / self.num_snapshots.clamp(min=1)).to(point)
        before = point - self.mean
        self.mean.lerp_(point, share)
        deviation = point - self.mean
        self.variance.lerp_(before * deviation, share)
        column = ((self.num_snapshots - 1) % self.rank).reshape(1)
        kept = self.deviations.index_select(0, column)
        self.deviations.index_copy_(0, column, torch.where(is_due, deviation, kept))

    @torch.no_grad()
    def finish(self) -> None:
        """Become the Gaussian of the snapshots; calling it again changes nothing."""
        if int(self.num_snapshots) < 2:
            return
        self.is_joint = True
        self.set_mode(self.mean)
        self.set_marginal_scales(self.joint().stddev)

    def joint(self) -> LowRankMultivariateNormal:
        """Return the distribution of all unknowns, of the snapshots so far."""
        columns = self.num_snapshots.clamp(2, self.rank)
        factor = self.deviations.T / (2 * (columns - 1)).to(self.mean).sqrt()
        diagonal = (self.variance / 2).clamp(min=MIN_VARIANCE)
        return LowRankMultivariateNormal(self.mean, factor, diagonal, validate_args=False)

    def guide(self) -> None:
        """Sample a point in training, then all unknowns together and the sites they determine."""
        if self.is_joint:
            flat = pyro.sample(JOINT_SITE, self.joint(), infer={"is_auxiliary": True})
            self.sample_points(flat, Delta)
        else:
            self.sample_points(self.mode, Point)

    def metrics(self) -> dict[str, float]:
        """Return the number of snapshots, and the geometric mean of the standard deviations."""
        num_snapshots = float(self.num_snapshots)
        if not self.is_joint:
            return {"num_snapshots": num_snapshots}
        scales = torch.cat([site.log_scale.reshape(-1) for site in self.sites().values()])
        return {"num_snapshots": num_snapshots, "typical_sd": math.exp(float(scales.mean()))}

    def get_extra_state(self) -> Tensor:
        """Return whether the guide has become a Gaussian."""
        return torch.tensor(self.is_joint)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore whether the guide has become a Gaussian."""
        self.is_joint = bool(state)
