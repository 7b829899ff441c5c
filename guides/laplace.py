"""Laplace approximation: a Gaussian at the mode, as wide as the curvature there says."""

import math
from collections.abc import Mapping

import pyro
import torch
from pyro.distributions import Delta, MultivariateNormal
from torch import Tensor
from torch.distributions import biject_to

from guides.base import Composite, Guide
from guides.mean_field import MeanField, SitePosterior
from guides.point import Point

#: Site of all unknowns together.
JOINT_SITE = "_laplace"


class LaplaceGuide(Composite):
    r"""Gaussian :math:`q(u) = N(\hat u, H^{-1})` in unconstrained space.

    During training it is a point, :math:`\hat u`, which moves to the mode. `set_precision` then
    gives it the curvature :math:`H`, a matrix or, for many unknowns, its diagonal alone.

    Parameters
    ----------
    parts
        Factorised guides by name of the part. They say where the mode starts.

    References
    ----------
    MacKay (1992), *A Practical Bayesian Framework for Backpropagation Networks*.
    """

    scale_tril: Tensor
    log_evidence: Tensor

    def __init__(self, parts: Mapping[str, Guide]) -> None:
        super().__init__(parts)
        for site in self.sites().values():
            site.fix_scale()
        self.has_curvature = False
        loc = next(iter(self.sites().values())).loc
        # Not persistent: its size says whether the covariance is known, see `get_extra_state`.
        self.register_buffer("scale_tril", loc.new_zeros(0, 0), persistent=False)
        self.register_buffer(
            "log_evidence", torch.full_like(loc, math.nan, dtype=torch.float64).sum()
        )
        self.register_load_state_dict_post_hook(_remember_curvature)

    def sites(self) -> dict[str, SitePosterior]:
        """Return location and scale of every site, by name."""
        parts = [part for part in self._guides() if isinstance(part, MeanField)]
        return {name: part[name] for part in parts for name in part.names}

    @property
    def mode(self) -> Tensor:
        """Location of all unknowns, unconstrained, as one vector."""
        return torch.cat([site.loc.reshape(-1) for site in self.sites().values()])

    def set_mode(self, mode: Tensor) -> None:
        """Move the location of all unknowns."""
        with torch.no_grad():
            for name, value in self.split(mode).items():
                self.sites()[name].loc.copy_(value)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the unconstrained value of every site from one vector, or from many at once."""
        sites = self.sites()
        values = flat.split([site.loc.numel() for site in sites.values()], dim=-1)
        return {
            name: value.reshape(value.shape[:-1] + site.loc.shape)
            for (name, site), value in zip(sites.items(), values, strict=True)
        }

    def constrained(self, flat: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return value and log Jacobian of every site from one unconstrained vector."""
        values, corrections = {}, {}
        for name, unconstrained in self.split(flat).items():
            site = self.sites()[name]
            transform = biject_to(site.support)
            values[name] = transform(unconstrained)
            correction = transform.log_abs_det_jacobian(unconstrained, values[name])
            num_dims = site.event_dim - transform.codomain.event_dim
            corrections[name] = (
                correction.flatten(correction.dim() - num_dims).sum(-1) if num_dims else correction
            )
        return values, corrections

    @torch.no_grad()
    def set_precision(self, precision: Tensor, log_joint: float) -> None:
        r"""Widen the guide from the curvature at its mode.

        Parameters
        ----------
        precision
            Hessian :math:`H` of the negative log joint in unconstrained space, or its diagonal.
        log_joint
            The log joint itself, for the evidence :math:`\log p(D, \hat u) + \frac{d}{2} \log 2\pi
            - \frac12 \log |H|`.

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
        for name, value in self.split(scale.log()).items():
            self.sites()[name].log_scale.copy_(value)
        self.log_evidence.copy_(log_joint + 0.5 * size * math.log(2 * math.pi) + log_volume)
        self.has_curvature = True

    @property
    def is_joint(self) -> bool:
        """Whether the correlations of all unknowns are known."""
        return len(self.scale_tril) > 0

    def guide(self) -> None:
        """Sample a point in training; then a Gaussian, with correlations where they are known."""
        if self.is_joint:
            joint = MultivariateNormal(self.mode, scale_tril=self.scale_tril)
            flat = pyro.sample(JOINT_SITE, joint, infer={"is_auxiliary": True})
            self._sample_points(flat, Delta)
        elif self.has_curvature:
            super().guide()
        else:
            self._sample_points(self.mode, Point)

    def _sample_points(self, flat: Tensor, family: type[Delta]) -> None:
        values, corrections = self.constrained(flat)
        for name, site in self.sites().items():
            point = family(values[name], -corrections[name], event_dim=site.event_dim)
            pyro.sample(name, point)

    def sample_sites(self) -> dict[str, Tensor]:
        """Run the sample statements and return the values of the model's sites."""
        values = super().sample_sites()
        values.pop(JOINT_SITE, None)
        return values

    def medians(self) -> dict[str, Tensor]:
        """Return the mode, in constrained space."""
        return {name: value.detach() for name, value in self.constrained(self.mode)[0].items()}

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of this guide at values of its sites."""
        if not self.is_joint:
            return super().log_density(values)
        transforms = {name: biject_to(site.support) for name, site in self.sites().items()}
        flat = torch.cat([t.inv(values[name]).reshape(-1) for name, t in transforms.items()])
        joint = MultivariateNormal(self.mode, scale_tril=self.scale_tril)
        density: Tensor = joint.log_prob(flat)
        return density - sum(self.constrained(flat)[1].values())

    def metrics(self) -> dict[str, float]:
        """Return the evidence, once the curvature is known."""
        return {"log_evidence": float(self.log_evidence)}

    def get_extra_state(self) -> Tensor:
        """Return the factor of the covariance, which is empty as long as it is not known."""
        return self.scale_tril

    def set_extra_state(self, state: Tensor) -> None:
        """Take a factor of the covariance back."""
        self.scale_tril = state.to(self.scale_tril)


def _remember_curvature(guide: LaplaceGuide, keys: object) -> None:
    guide.has_curvature = not bool(guide.log_evidence.isnan())


def _covariance_tril(precision: Tensor) -> Tensor:
    """Return the lower triangular L with L Lᵀ = precision⁻¹."""
    # With the order reversed the factor of the precision is the inverse of the one that is wanted.
    reversed_tril, failed = torch.linalg.cholesky_ex(precision.flip(0, 1))
    if int(failed):
        raise ValueError("the curvature is not positive definite")
    inverse = reversed_tril.flip(0, 1).T
    identity = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
    tril: Tensor = torch.linalg.solve_triangular(inverse, identity, upper=False)
    return tril
