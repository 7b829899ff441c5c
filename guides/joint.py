"""Guides of all unknowns together, as one vector in unconstrained space."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import biject_to

from guides.base import Composite, Guide
from guides.mean_field import MeanField, SitePosterior

#: Site of all unknowns together.
JOINT_SITE = "_joint"


class JointGuide(Composite):
    r"""Base of guides that train a point :math:`\hat u` and turn it into a joint distribution.

    The values of the sites are :math:`z = T(u)`, where :math:`T` is the bijection onto the support
    of each site. The locations of the parts are trained. Their scales are not: a subclass sets them
    to the marginal standard deviations of :math:`u` when these are known.

    Parameters
    ----------
    parts
        Factorised guides by name of the part; they give the initial point.
    """

    #: Whether the joint distribution is known.
    is_joint = False

    def __init__(self, parts: Mapping[str, Guide]) -> None:
        super().__init__(parts)
        for site in self.sites().values():
            site.fix_scale()

    def sites(self) -> dict[str, SitePosterior]:
        """Return location and scale of every site, by name."""
        parts = [part for part in self._guides() if isinstance(part, MeanField)]
        return {name: part[name] for part in parts for name in part.names}

    @property
    def mode(self) -> Tensor:
        """Location of all unknowns, unconstrained, as one vector."""
        return torch.cat([site.loc.reshape(-1) for site in self.sites().values()])

    @torch.no_grad()
    def set_mode(self, mode: Tensor) -> None:
        """Move the location of all unknowns."""
        for name, value in self.split(mode).items():
            self.sites()[name].loc.copy_(value)

    @torch.no_grad()
    def set_marginal_scales(self, scale: Tensor) -> None:
        """Set the standard deviation of every unknown, unconstrained, from one vector."""
        for name, value in self.split(scale.log()).items():
            self.sites()[name].log_scale.copy_(value)

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

    def sample_points(self, flat: Tensor, family: type[Delta]) -> None:
        """Sample every site as the point given by one unconstrained vector."""
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
        """Return the point, in constrained space."""
        return {name: value.detach() for name, value in self.constrained(self.mode)[0].items()}

    @abstractmethod
    def joint(self) -> Any:
        """Return the distribution of all unknowns, unconstrained."""

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of this guide at values of its sites."""
        if not self.is_joint:
            return super().log_density(values)
        transforms = {name: biject_to(site.support) for name, site in self.sites().items()}
        flat = torch.cat([t.inv(values[name]).reshape(-1) for name, t in transforms.items()])
        density: Tensor = self.joint().log_prob(flat)
        return density - sum(self.constrained(flat)[1].values())
