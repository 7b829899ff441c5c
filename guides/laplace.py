"""Laplace approximation: a Gaussian at the mode, as wide as the curvature there says."""

import math
from collections.abc import Mapping

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import biject_to

from guides.base import Composite, Guide
from guides.mean_field import MeanField, NormalPosterior

#: Site of all unknowns together.
JOINT_SITE = "_laplace"


class Laplace(Composite):
    r"""Gaussian :math:`q(u) = N(\hat u, H^{-1})` in unconstrained space.

    :math:`\hat u` is trained, as the centre of a factorised posterior whose scales are fixed: with
    small ones that is the mode. `set_precision` then gives it the curvature :math:`H`, a matrix or,
    for many unknowns, its diagonal alone.

    Parameters
    ----------
    parts
        Factorised guides by name of the part; their scales are no parameters any more.

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
        loc = next(iter(self.sites().values())).loc
        # Not persistent: its size says whether the covariance is known, see `get_extra_state`.
        self.register_buffer("scale_tril", loc.new_zeros(0, 0), persistent=False)
        self.register_buffer(
            "log_evidence", torch.full_like(loc, math.nan, dtype=torch.float64).sum()
        )

    def sites(self) -> dict[str, NormalPosterior]:
        """Return location and scale of every site, by name."""
        parts = [part for part in self._guides() if isinstance(part, MeanField)]
        posteriors = {name: part[name] for part in parts for name in part.names}
        for name, posterior in posteriors.items():
            if not isinstance(posterior, NormalPosterior):
                raise ValueError(
                    f"the posterior of site {name!r} has no location that can be moved"
                )
        return posteriors  # type: ignore[return-value]

    @property
    def mode(self) -> Tensor:
        """Location of all unknowns, unconstrained, as one vector."""
        return torch.cat([site.loc.reshape(-1) for site in self.sites().values()])

    def set_mode(self, mode: Tensor) -> None:
        """Move the location of all unknowns."""
        with torch.no_grad():
            for name, value in self.split(mode).items():
                self.sites()[name].move(value)

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

    @property
    def is_joint(self) -> bool:
        """Whether the correlations of all unknowns are known."""
        return len(self.scale_tril) > 0

    def sample_sites(self) -> dict[str, Tensor]:
        """Sample every site; all together where correlations are known."""
        if not self.is_joint:
            return super().sample_sites()
        flat = pyro.sample(JOINT_SITE, self._joint(), infer={"is_auxiliary": True})
        values, corrections = self.constrained(flat)
        for name, site in self.sites().items():
            delta = dist.Delta(values[name], -corrections[name], event_dim=site.event_dim)
            values[name] = pyro.sample(name, delta)
        return values

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of this guide at values of its sites."""
        if not self.is_joint:
            return super().log_density(values)
        transforms = {name: biject_to(site.support) for name, site in self.sites().items()}
        flat = torch.cat([t.inv(values[name]).reshape(-1) for name, t in transforms.items()])
        density: Tensor = self._joint().log_prob(flat)
        return density - sum(self.constrained(flat)[1].values())

    def _joint(self) -> dist.MultivariateNormal:
        return dist.MultivariateNormal(self.mode, scale_tril=self.scale_tril)

    def figures(self) -> dict[str, float]:
        """Return the evidence, once the curvature is known."""
        return {"log_evidence": float(self.log_evidence)}

    def get_extra_state(self) -> Tensor:
        """Return the factor of the covariance, which is empty as long as it is not known."""
        return self.scale_tril

    def set_extra_state(self, state: Tensor) -> None:
        """Take a factor of the covariance back."""
        self.scale_tril = state.to(self.scale_tril)


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
