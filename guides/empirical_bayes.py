"""Empirical Bayes: weights as multiples of their own standard deviation."""

from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from guides.mean_field import NormalPosterior
from guides.sparse_vd import SparseVD


class RatioPosterior(NormalPosterior):
    """Posterior of one real site: standard deviation softplus(rho), mean gamma times that."""

    def start(self, loc: Tensor, init_scale: float) -> None:
        """Make the parameters."""
        scale = torch.full_like(loc, init_scale)
        self.rho = nn.Parameter(scale.expm1().log())
        self.gamma = nn.Parameter(loc / scale)

    def fix_scale(self) -> None:
        """Let the standard deviation stay as it is."""
        rho = self.rho.detach()
        del self.rho
        self.register_buffer("rho", rho)

    @torch.no_grad()
    def move(self, loc: Tensor) -> None:
        """Put the mean elsewhere, with the same standard deviation."""
        self.gamma.copy_(loc / softplus(self.rho))

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        """Mean."""
        return self.gamma * softplus(self.rho)

    @property
    def log_scale(self) -> Tensor:  # type: ignore[override]
        """Log standard deviation."""
        return softplus(self.rho).log()

    def distribution(self) -> Any:
        """Return the current posterior as a Pyro distribution."""
        scale = softplus(self.rho)
        return dist.Normal(self.gamma * scale, scale).to_event(self.event_dim)


class EmpiricalBayes(SparseVD):
    r"""Posterior of one weight tensor whose prior variances are fitted to it.

    .. math::
        q(w_k) = N(\mu_k, \sigma_k^2), \quad \sigma_k = \log(1 + e^{\rho_k}), \quad
        \mu_k = \gamma_k \sigma_k

    The divergence from the fitted prior, :math:`\frac12 \log(1 + \gamma_k^2)`, has no quotient in
    these parameters. A weight is pruned as in sparse variational dropout, with
    :math:`\alpha_k = \gamma_k^{-2}`.

    References
    ----------
    Kharitonov, Molchanov and Vetrov (2018), *Variational Dropout via Empirical Bayes*.
    """

    family: ClassVar[type[NormalPosterior]] = RatioPosterior
