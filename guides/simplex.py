r"""Distributions of points on a simplex, in coordinates without a border.

A point :math:`\gamma` inside the simplex of :math:`K` corners has the unconstrained coordinates
:math:`u_k = \log (\gamma_k / \gamma_K)`. In them no sample underflows at a corner, however low the
temperature. Densities are those of :math:`u`, which are the densities of :math:`\gamma` times
:math:`\prod_k \gamma_k`; divergences are the same in both.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from guides.distribution_base import Expandable, analytic_kl
from guides.private_torch import standard_gamma


def log_weights(coordinates: Tensor) -> Tensor:
    r"""Return :math:`\log\gamma` of coordinates, with one number more in the last dimension."""
    return torch.log_softmax(completed(coordinates), dim=-1)


def completed(coordinates: Tensor) -> Tensor:
    """Append the coordinate of the last corner, which is zero."""
    return torch.cat([coordinates, torch.zeros_like(coordinates[..., :1])], dim=-1)


def coordinates_of(log_weights: Tensor) -> Tensor:
    """Return the coordinates of log weights, which need not be normalised."""
    return log_weights[..., :-1] - log_weights[..., -1:]


class GumbelSoftmax(Expandable):
    r"""The Gumbel-Softmax (concrete) distribution GS(s, λ) of the coordinates.

    A draw is :math:`\gamma = \mathrm{softmax}((\log s + G) / \lambda)` with Gumbel noise :math:`G`,
    and

    .. math::
        \log p(u) = \log (K - 1)! + (K - 1) \log\lambda
            + \sum_k \log \mathrm{softmax}_k(\log s - \lambda [u, 0])

    At :math:`\lambda \to 0` draws are corners, at :math:`\lambda \to \infty` the centre; at any
    temperature the largest weight is that of corner :math:`k` with probability :math:`s_k / \sum_j
    s_j`.

    Parameters
    ----------
    temperature
        :math:`\lambda`.
    logits
        :math:`\log s`, up to an additive constant.

    References
    ----------
    Maddison et al. (2017), *The Concrete Distribution*; Jang, Gu and Poole (2017),
    *Categorical Reparameterization with Gumbel-Softmax*.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "temperature": constraints.positive,
        "logits": constraints.real_vector,
    }
    batched = ("temperature", "logits")
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, temperature: Tensor, logits: Tensor, *, validate_args: bool | None = None
    ) -> None:
        batch = torch.broadcast_shapes(temperature.shape, logits.shape[:-1])
        self.temperature = temperature.expand(batch)
        self.logits = logits.expand(*batch, logits.shape[-1])
        event = torch.Size([logits.shape[-1] - 1])
        super().__init__(batch, event, validate_args=validate_args)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through both parameters."""
        shape = torch.Size([*torch.Size(sample_shape), *self.logits.shape])
        noise = torch.empty(shape, dtype=self.logits.dtype, device=self.logits.device)
        gumbel = -noise.exponential_().log()
        return coordinates_of(self.logits + gumbel) / self.temperature.unsqueeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of coordinates."""
        if self._validate_args:
            self._validate_sample(value)
        corners = self.logits.shape[-1]
        shifted = self.logits - self.temperature.unsqueeze(-1) * completed(value)
        constant = math.lgamma(corners) + (corners - 1) * self.temperature.log()
        return torch.log_softmax(shifted, dim=-1).sum(-1) + constant

    @property
    def probabilities(self) -> Tensor:
        """Probability that the largest weight is that of each corner."""
        return torch.softmax(self.logits, dim=-1)

    @property
    def median(self) -> Tensor:
        """The coordinates at the median of the noise."""
        return coordinates_of(self.logits) / self.temperature.unsqueeze(-1)


class Corner(GumbelSoftmax):
    r"""The distribution of a corner, :math:`P(k) = s_k / \sum_j s_j`, with a relaxation to draw it.

    The coordinates are those of `GumbelSoftmax`, but only the largest weight matters: the
    divergence between two of these is that of the discrete distributions, and the temperature only
    affects how gradients are estimated. `log_prob` is still the density of the coordinates, which
    other guides of the site need, so k-hat also compares the temperatures of prior and posterior:
    it can exceed 0.7 although the posterior of the corners is exact.
    """


class Dirichlet(Expandable):
    r"""The Dirichlet distribution of the coordinates.

    .. math:: \log p(u) = \sum_k c_k \log\gamma_k - \log B(c)

    Draws are made from logarithms of Gamma variables, which do not underflow for small
    :math:`c`: :math:`\log \mathrm{Gamma}(c) = \log \mathrm{Gamma}(c + 1) + \log(U) / c`.

    Parameters
    ----------
    concentration
        :math:`c`.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }
    batched = ("concentration",)
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, concentration: Tensor, *, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        batch, corners = concentration.shape[:-1], concentration.shape[-1]
        super().__init__(batch, torch.Size([corners - 1]), validate_args=validate_args)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw, with gradients through the concentration."""
        shape = torch.Size([*torch.Size(sample_shape), *self.concentration.shape])
        concentration = self.concentration.expand(shape)
        smaller = -torch.empty_like(concentration).exponential_() / concentration
        return coordinates_of(standard_gamma(concentration + 1).log() + smaller)

    @property
    def median(self) -> Tensor:
        """The coordinates of the mean weights, used as the median."""
        return coordinates_of(self.concentration.log())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of coordinates."""
        if self._validate_args:
            self._validate_sample(value)
        c = self.concentration
        return (c * log_weights(value)).sum(-1) - (c.lgamma().sum(-1) - c.sum(-1).lgamma())


@analytic_kl(Corner, Corner)
def _kl_corner(q: Corner, p: Corner) -> Tensor:
    """Σ q log(q / p) over corners."""
    log_q, log_p = (torch.log_softmax(fn.logits, dim=-1) for fn in (q, p))
    return (log_q.exp() * (log_q - log_p)).sum(-1)


@analytic_kl(Dirichlet, Dirichlet)
def _kl_dirichlet(q: Dirichlet, p: Dirichlet) -> Tensor:
    """Return the divergence of the points on the simplex, which is that of their coordinates."""
    pair = (torch.distributions.Dirichlet(fn.concentration, validate_args=False) for fn in (q, p))
    return torch.distributions.kl_divergence(*pair)
