"""Empirical Bayes: every mean is a multiple of its standard deviation.

Kharitonov, Molchanov and Vetrov (2018), *Variational Dropout via Empirical Bayes*.
"""

from typing import Any

import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor, nn
from torch.nn.functional import softplus

from guides.slot import LocScale
from guides.sparse_vd import SparseVDGuide


class Ratio(LocScale):
    r"""Parameters of one site: :math:`\sigma = \log(1 + e^\rho)` and :math:`\mu = \gamma\sigma`.

    In them the divergence from the fitted prior, :math:`\frac12 \log(1 + \gamma^2)`, has no
    quotient.
    """

    def __init__(self, loc: Tensor, init_scale: float) -> None:
        nn.Module.__init__(self)
        scale = torch.full_like(loc, init_scale)
        self.rho = nn.Parameter(scale.expm1().log())
        self.gamma = nn.Parameter(loc / scale)

    @property
    def scale(self) -> Tensor:
        """Standard deviation."""
        return softplus(self.rho)

    def normal(self) -> Any:
        """Return the normal distribution of independent elements with these parameters."""
        scale = self.scale
        return Normal(self.gamma * scale, scale).to_event(scale.dim())

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        """Mean."""
        return self.gamma * self.scale

    @property
    def log_scale(self) -> Tensor:  # type: ignore[override]
        """Log standard deviation."""
        return self.scale.log()


class EmpiricalBayesGuide(SparseVDGuide):
    r"""Posterior of one weight tensor whose prior variances are fitted to it.

    Weights are pruned as in sparse variational dropout, with :math:`\alpha_k = \gamma_k^{-2}`.

    Parameters
    ----------
    slot, init, init_scale
        As for `SparseVDGuide`.
    """

    def __init__(self, slot: str, init: Tensor, *, init_scale: float = 0.01) -> None:
        super().__init__(slot, init, init_scale=init_scale)
        self.w = Ratio(init, init_scale)

    def guide(self) -> None:
        """Sample the weights."""
        pyro.sample(self.slot, self.w.normal())
