"""One weight tensor with independent Gaussian elements, each of them a group of its own."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from guides.mean_field import MeanField, NormalPosterior

#: Keeps the logarithm of a squared mean finite; the divergence has the same.
EPSILON = 1e-16


def log_dropout_rate(loc: Tensor, log_scale: Tensor) -> Tensor:
    r"""Return :math:`\log\alpha = \log(\sigma^2 / \mu^2)`, in double precision."""
    return 2 * log_scale.double() - (loc.double().square() + EPSILON).log()


class Elementwise(MeanField):
    r"""Posterior of one weight tensor, :math:`q(w_i) = N(\mu_i, \sigma_i^2)`.

    Parameters
    ----------
    program
        Pyro program with the one site ``{slot}``.
    slot
        Name of the weight tensor.
    init, init_scale
        As for `MeanField`.
    fit_prior
        Called with means and standard deviations before every draw: a prior that is fitted to the
        posterior follows it here. At the optimum of the prior the gradients of the divergence in
        its parameters are zero, so none need to flow (envelope theorem).
    """

    #: The family of the site's posterior.
    family: ClassVar[type[NormalPosterior]] = NormalPosterior

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        slot: str,
        init: Mapping[str, Tensor],
        init_scale: float = 0.01,
        fit_prior: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        super().__init__(program, init=init, init_scale=init_scale, posterior=self.family)
        self.slot = slot
        self.group_shape: torch.Size = init[slot].shape
        self.fit_prior = fit_prior

    def sample_sites(self) -> dict[str, Tensor]:
        """Let the prior follow, then sample the weights."""
        if self.fit_prior is not None:
            with torch.no_grad():
                posterior = self[self.slot]
                self.fit_prior(posterior.loc.detach(), posterior.log_scale.detach().exp())
        return super().sample_sites()

    def weight_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the weights."""
        posterior = self[self.slot]
        return posterior.loc.double(), (2 * posterior.log_scale.double()).exp()
