"""Full rank: one multivariate Normal over all sites, which keeps their correlations."""

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor
from torch.distributions import biject_to

from guides.base import Guide

#: The covariance of more unknowns than this does not fit the purpose: it has their square.
MAX_UNKNOWNS = 3000


class FullRank(Guide):
    r"""Pyro's `AutoMultivariateNormal` as a guide of this package.

    .. math:: q(u) = N(u \mid \mu, L L^\top), \quad w = T(u)

    with :math:`T` the bijection onto the support of each site. The divergence is estimated from the
    draw, not in closed form. For small models only: :math:`L` has the square of the number of
    unknowns.

    Parameters
    ----------
    model
        The Pyro program to approximate.
    init
        Where every site starts, in constrained space.
    init_scale
        Standard deviation at the start, in unconstrained space.

    References
    ----------
    Kucukelbir, Tran, Ranganath, Gelman and Blei (2017), *Automatic Differentiation Variational
    Inference*.
    """

    def __init__(
        self, model: Callable[..., Any], *, init: Mapping[str, Tensor], init_scale: float
    ) -> None:
        super().__init__()
        size = sum(value.numel() for value in init.values())
        if size > MAX_UNKNOWNS:
            raise ValueError(
                f"a full-rank posterior of {size} unknowns needs {size**2:,} numbers; at most "
                f"{MAX_UNKNOWNS} unknowns are accepted"
            )
        start = init_to_value(values={name: value.detach() for name, value in init.items()})
        with poutine.block(), _own_parameters():
            self.auto = AutoMultivariateNormal(model, init_loc_fn=start, init_scale=init_scale)
            self.auto()  # makes the parameters
            nodes: dict[str, Any] = dict(poutine.trace(model).get_trace().nodes)
        self.supports = {name: nodes[name]["fn"].support for name in init}

    def guide(self) -> None:
        """Sample all sites together."""
        with _own_parameters():
            self.auto()

    def sample_sites(self) -> dict[str, Tensor]:
        """Sample all sites together and return their values, without the auxiliary one."""
        values = super().sample_sites()
        return {name: values[name] for name in self.supports}

    @torch.no_grad()
    def medians(self) -> dict[str, Tensor]:
        """Return the median of every site's posterior."""
        with _own_parameters():
            values: dict[str, Tensor] = self.auto.median()
        return {name: values[name].detach() for name in self.supports}

    def log_density(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of this guide at values of its sites."""
        flat, correction = (
            [],
            torch.zeros((), dtype=self.auto.loc.dtype, device=self.auto.loc.device),
        )
        for name, support in self.supports.items():
            transform = biject_to(support)
            u = transform.inv(values[name])
            flat.append(u.reshape(-1))
            correction = correction + transform.log_abs_det_jacobian(u, values[name]).sum()
        with _own_parameters():
            total: Tensor = self.auto.get_posterior().log_prob(torch.cat(flat)) - correction
        return total


def _own_parameters() -> Any:
    """Keep Pyro from sharing the parameters of all guides of this class by their names."""
    return pyro.settings.context(module_local_params=True)
