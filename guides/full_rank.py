"""Full rank: one multivariate Normal over all sites, which keeps their correlations."""

from collections.abc import Callable, Mapping
from typing import Any

from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from guides.adapted import Adapted, auto_guide
from guides.base import Guide

#: Largest number of unknowns; the covariance has the square of it.
MAX_UNKNOWNS = 3000


class FullRank(Adapted):
    r"""Pyro's `AutoMultivariateNormal` as a guide of this package.

    .. math:: q(u) = N(u \mid \mu, L L^\top), \quad w = T(u)

    with :math:`T` the bijection onto the support of each site. The divergence is estimated by
    sampling, not in closed form. For small models only: :math:`L` has the square of the number of
    unknowns.

    Parameters
    ----------
    model, *args, **kwargs
        The Pyro model to approximate, and its arguments.
    init
        Initial value of every site, in constrained space.
    init_scale
        Initial standard deviation, in unconstrained space.

    References
    ----------
    Kucukelbir, Tran, Ranganath, Gelman and Blei (2017), *Automatic Differentiation Variational
    Inference*.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *args: Any,
        init: Mapping[str, Tensor],
        init_scale: float,
        **kwargs: Any,
    ) -> None:
        size = sum(value.numel() for value in init.values())
        if size > MAX_UNKNOWNS:
            raise ValueError(
                f"a full-rank posterior of {size} unknowns needs {size**2:,} numbers; at most "
                f"{MAX_UNKNOWNS} unknowns are accepted"
            )
        made = auto_guide(
            AutoMultivariateNormal, model, *args, init=init, init_scale=init_scale, **kwargs
        )
        super().__init__(made.auto, model, *args, **kwargs)

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """Draw all sites ``num_samples`` times, in one vectorised call if there are no plates."""
        return super().draw(num_samples) if self.is_plated else Guide.draw(self, num_samples)
