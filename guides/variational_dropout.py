"""Variational dropout: Gaussian noise in proportion to what it multiplies, at a learned rate."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from guides.log_scale_normal import LogScaleNormal
from guides.mean_field import MeanField, SitePosterior

#: Keeps the scale of a weight of zero positive.
TINY = 1e-16


class DropoutPosterior(SitePosterior):
    r"""Gaussian posterior whose standard deviation is a multiple of its mean.

    .. math:: q(s_i) = N(\mu_i, \alpha_{g(i)} \mu_i^2), \quad
        \alpha_g = \alpha_{\max}\, \mathrm{sigmoid}(\rho_g)

    Parameters
    ----------
    site
        The site of the traced model; its value is where :math:`\mu` starts.
    init_scale
        Not used: the rate says how large the noise is at the start.
    rate, max_rate
        The variance :math:`\alpha` at the start, and its upper bound.
    rate_shape
        Shape of the rates, broadcastable against the site.
    learn_mean, learn_rate
        Whether :math:`\mu` and :math:`\rho` are trained.
    """

    logit: Tensor
    log_max_rate: Tensor

    def __init__(
        self,
        site: Mapping[str, Any],
        init_scale: float,
        *,
        rate: float,
        max_rate: float,
        rate_shape: torch.Size,
        learn_mean: bool,
        learn_rate: bool,
    ) -> None:
        super().__init__(site)
        loc = site["value"].detach().clone()
        logit = loc.new_full(rate_shape, math.log(rate) - math.log(max_rate - rate))
        for name, value, learned in (("loc", loc, learn_mean), ("logit", logit, learn_rate)):
            if learned:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        self.register_buffer("log_max_rate", loc.new_tensor(math.log(max_rate)))

    def log_rate(self) -> Tensor:
        r"""Return :math:`\log\alpha`."""
        return self.log_max_rate + logsigmoid(self.logit)

    @property
    def log_scale(self) -> Tensor:  # type: ignore[override]
        """Logarithm of the standard deviation."""
        return 0.5 * (self.log_rate() + (self.loc.square() + TINY).log())

    def distribution(self) -> Any:
        """Return the current posterior as a Pyro distribution."""
        return LogScaleNormal(self.loc, self.log_scale).to_event(self.event_dim)

    def median(self) -> Tensor:
        """Return the mean."""
        return self.loc


class VariationalDropout(MeanField):
    """Posterior of one slot under variational dropout.

    Parameters
    ----------
    program
        Pyro program with one site, named like the slot.
    slot
        Name of the site.
    init
        Where the means start, by site.
    **options
        As for `DropoutPosterior`.

    References
    ----------
    Kingma, Salimans and Welling (2015), *Variational Dropout and the Local Reparameterization
    Trick*.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        slot: str,
        init: Mapping[str, Tensor],
        **options: Any,
    ) -> None:
        super().__init__(program, init=init, posterior=partial(DropoutPosterior, **options))
        self.slot = slot

    def dropout_rates(self) -> Tensor:
        r"""Return :math:`p = \alpha / (1 + \alpha)`, the rate of Bernoulli dropout that matches."""
        posterior = self[self.slot]
        assert isinstance(posterior, DropoutPosterior)
        return torch.sigmoid(posterior.log_rate())
