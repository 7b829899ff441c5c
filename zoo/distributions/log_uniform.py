"""The log-uniform prior of variational dropout and of the normal-Jeffreys scale."""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal, constraints

from guides.distribution_base import Expandable, analytic_kl
from guides.elementwise import EPSILON
from guides.log_scale_normal import LogScaleNormal

__all__ = ["LogUniform", "dawson", "kl_log_uniform"]

# Fit of Molchanov et al. (2017): largest error 0.0094 nats for log α in [-10, 10].
_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695
_LOG_ALPHA_LIMIT = 10.0

# Above this u the asymptotic series with 16 terms is accurate to rounding, below it quadrature
# with 40 nodes.
_CROSSOVER = 50.0
_roots, _masses = np.polynomial.legendre.leggauss(40)
_NODES = [(0.5 * (x + 1), 0.5 * w) for x, w in zip(_roots.tolist(), _masses.tolist(), strict=True)]
_TERMS = [math.prod(range(1, 2 * k, 2)) / 2 ** (k + 1) for k in range(17)]
_CONSTANT = math.log(2) + 0.5 * float(np.euler_gamma)


class Improper(Expandable):
    """Base of densities on the real line that cannot be normalised, so cannot be sampled."""

    support = constraints.real
    has_rsample = False
    #: What to sample instead.
    counterpart: ClassVar[str]

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Raise an error: the distribution is improper."""
        raise NotImplementedError(
            f"{type(self).__name__} is improper and cannot be sampled. Use its proper counterpart, "
            f"{self.counterpart}."
        )

    rsample = sample


class LogUniform(Improper):
    r"""Improper log-uniform prior on the real line.

    .. math:: p(w) ∝ 1/|w|

    It cannot be normalised, so `log_prob` is defined up to an additive constant and the
    distribution cannot be sampled. Use it with a `Normal` guide and
    `pyro.infer.TraceMeanField_ELBO`, which uses `kl_log_uniform`. For sampling-based inference and
    prior prediction use the proper `SmoothLogUniform`.

    References
    ----------
    See `zoo.models.variational_dropout` and `zoo.models.sparse_vd`; Hron, Matthews & Ghahramani
    (2018), *Variational Bayesian dropout: pitfalls and fixes*, on why the posterior under it need
    not exist.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    counterpart = "SmoothLogUniform(low, high)"

    def __init__(self, *, validate_args: bool | None = None) -> None:
        super().__init__(torch.Size(), validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return −log|value|, up to an additive constant."""
        if self._validate_args:
            self._validate_sample(value)
        tiny = torch.finfo(value.dtype).tiny
        density = -value.abs().clamp(min=tiny).log()
        return density.expand(np.broadcast_shapes(value.shape, self.batch_shape))


def _exact(x: Tensor) -> Tensor:
    """Return u·₂F₂(1, 1; 3/2, 2; −u) at u = x²; its derivative in x is 2 D(x).

    It is the integral of (1 − exp(−u (1 − t²)))/(1 − t²) over [0, 1]; for large u a series.
    """
    u = x * x
    near, far = u.clamp(max=_CROSSOVER), u.clamp(min=_CROSSOVER)
    inner, tail = torch.zeros_like(u), torch.zeros_like(u)
    for node, weight in _NODES:
        gap = 1 - node * node
        inner = inner - (weight / gap) * torch.expm1(-gap * near)
    for k in range(16, 0, -1):
        tail = (tail + _TERMS[k] / k) / far
    return torch.where(u < _CROSSOVER, inner, 0.5 * far.log() + _CONSTANT - tail)


def dawson(x: Tensor) -> Tensor:
    r"""Dawson's integral.

    .. math:: D(x) = e^{-x²}\int_0^x e^{t²}dt = x\int_0^1 e^{-x²(1-t²)}dt

    Computed in float64 by quadrature, and by its asymptotic series for x² > 50.

    References
    ----------
    NIST *Digital Library of Mathematical Functions*, 7.5 and 7.12.
    """
    wide = x.double()
    u = wide * wide
    near, far = u.clamp(max=_CROSSOVER), u.clamp(min=_CROSSOVER)
    inner, tail = torch.zeros_like(u), torch.zeros_like(u)
    for node, weight in _NODES:
        inner = inner + weight * torch.exp(-(1 - node * node) * near)
    for k in range(16, -1, -1):
        tail = (tail + _TERMS[k]) / far
    return (wide * torch.where(u < _CROSSOVER, inner, tail)).to(x.dtype)


def molchanov(log_alpha: Tensor) -> Tensor:
    """Return k1·sigmoid(−(k2 + k3 log α)) + ½ log(1 + 1/α), the fit to the divergence."""
    bump = _K1 * torch.sigmoid(-(_K2 + _K3 * log_alpha))
    return bump + 0.5 * torch.nn.functional.softplus(-log_alpha)


def kl_log_uniform(loc: Tensor, scale: Tensor, *, method: str = "approximate") -> Tensor:
    r"""Divergence of a normal from the log-uniform prior, zero in the limit of pure noise.

    .. math:: KL = u\,{}_2F_2(1, 1; 3/2, 2; -u), \quad u = μ²/(2σ²),
        \quad dKL/du = D(\sqrt{u})/\sqrt{u}

    The approximation, for training, is `molchanov` at log α = 2 log σ − log(μ² + 1e-16), clamped to
    [−10, 10]; outside that range it is constant. The exact form serves as a reference.

    Parameters
    ----------
    loc, scale
        Mean and standard deviation of the normal.
    method
        "approximate" or "exact".
    """
    if method == "approximate":
        return _approximate(loc, scale.log())
    if method == "exact":
        x = loc.double() / (math.sqrt(2) * scale.double())
        return _exact(x).to(loc.dtype)
    raise ValueError(
        f"The 'method' parameter of kl_log_uniform must be 'approximate' or 'exact'. "
        f"Got {method!r} instead."
    )


def _approximate(loc: Tensor, log_scale: Tensor) -> Tensor:
    log_alpha = 2 * log_scale - (loc * loc + EPSILON).log()
    return molchanov(log_alpha.clamp(-_LOG_ALPHA_LIMIT, _LOG_ALPHA_LIMIT))


@analytic_kl(Normal, LogUniform)
def _kl_normal_log_uniform(p: Normal, q: LogUniform) -> Tensor:
    shape = np.broadcast_shapes(p.batch_shape, q.batch_shape)
    # Use the logarithm of the scale if the guide has it.
    log_scale = p.log_scale if isinstance(p, LogScaleNormal) else p.scale.log()
    return _approximate(p.loc, log_scale).expand(shape)
