r"""Curvature of the log joint at the mode, for Laplace approximations.

The generalised Gauss-Newton matrix linearises the network around the mode, which makes it positive
semi-definite:

.. math:: H = \sum_n J_n^\top \Lambda_n J_n - \nabla^2 \log p(\hat u), \quad
    J_n = \frac{\partial f(x_n)}{\partial u}

with :math:`\Lambda_n` the Fisher information of the observation about the outputs. For
likelihoods of classes and counts, and for Gaussian likelihoods, it is the Hessian of the negative
log likelihood.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from scipy import optimize
from torch import Tensor
from torch.distributions import Distribution, StudentT, kl_divergence
from torch.func import grad, jacrev, jvp, vmap

from guides.laplace import LaplaceGuide
from zoo.errors import ConfigError
from zoo.infer.predict.draws import observation_distribution, slots_of_one
from zoo.network.bnn import BNN

#: Largest number of elements of the Jacobians in memory.
CHUNK_NUMBERS = 2**24
#: Rows behind the curvature that decides on the noise, and unknowns of which it is a full matrix.
NOISE_ROWS, NOISE_UNKNOWNS = 2000, 1000
#: Largest change of the log of the noise scale at a time, and its smallest value.
NOISE_RANGE, MIN_LOG_NOISE = 2.0, math.log(1e-4)


@torch.no_grad()
def gauss_newton(model: BNN, guide: LaplaceGuide, x: Tensor, *, diagonal: bool) -> Tensor:
    """Return the curvature of the negative log likelihood of all rows, or its diagonal, in float64.

    The guide is at the mode.
    """
    mode = guide.mode
    size = mode.numel()
    total = mode.new_zeros(size if diagonal else (size, size), dtype=torch.float64)
    for rows in _chunks(model, x, size):
        outputs, jacobians = output_jacobians(model, guide, rows)
        values, vectors = torch.linalg.eigh(_information(model, outputs))
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)  # the matrix may be singular
        # With Λ = R Rᵀ every row of Rᵀ J is a row of a least-squares problem. Small noise makes
        # products so large that their rounding errors in float32 would exceed the prior's part.
        scaled = (root.mT @ jacobians).reshape(-1, size).double()
        total += scaled.square().sum(0) if diagonal else scaled.T @ scaled
    return total


def output_jacobians(model: BNN, guide: LaplaceGuide, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the likelihood sees at the mode, and its derivatives by the unknowns.

    Shapes are ``(rows, outputs)`` and ``(rows, outputs, unknowns)``; a Bayesian noise is
    an additional output.
    """

    def seen(flat: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        values = _slots(model, guide, flat)
        f = model.evaluate(values, row.unsqueeze(0)).squeeze(0)
        noise = values.get("noise")
        everything = f if noise is None else torch.cat([f, noise.reshape(1)])
        return everything, everything

    model.eval()
    both: tuple[Tensor, Tensor] = vmap(jacrev(seen, has_aux=True), (None, 0))(guide.mode, x)
    return both[1], both[0]


def along(function: Callable[[Any], Tensor], point: Any, step: Any) -> tuple[Tensor, Tensor]:
    """Return the value of a function at a point, and its derivative along a step."""
    with warnings.catch_warnings():
        # raised in torch by the first forward derivative of a process
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        value, change, *_ = jvp(function, (point,), (step,))
    return value, change


@torch.no_grad()
def prior_curvature(model: BNN, guide: LaplaceGuide) -> Tensor:
    """Return the second derivatives of the negative log prior, in float64.

    Elements must be independent under the prior (see `require_independent`). The Hessian is then
    diagonal, and one Hessian-vector product is enough.
    """
    slope = grad(lambda flat: -_log_prior(model, guide, flat))
    mode = guide.mode
    return along(slope, mode, torch.ones_like(mode))[1].double()


def require_independent(model: BNN) -> None:
    """Reject priors with several sites: their joint mode has vanishing scales or does not exist."""
    for slot, prior in model.priors.items():
        hyper = any(hasattr(value, "family") for value in prior.arguments.values())
        if prior.family.structured or hyper:
            raise ConfigError(
                f"the prior {prior} of slot {slot!r} has no mode to fit a point to. "
                "Use one with independent elements, for example Normal(0, 1)."
            )


@torch.no_grad()
def log_joint(model: BNN, guide: LaplaceGuide, x: Tensor, y: Tensor) -> float:
    """Return the log joint of all rows at the mode, in unconstrained space."""
    model.eval()
    values = _slots(model, guide, guide.mode)
    total = float(_log_prior(model, guide, guide.mode))
    device = guide.mode.device
    for rows, targets in zip(x.split(4096), y.split(4096), strict=True):
        f = model.evaluate(values, rows.to(device)).unsqueeze(0)
        noise = values.get("noise")
        observed = observation_distribution(model, f, None if noise is None else noise.reshape(1))
        total += float(observed.log_prob(targets.to(device)).double().sum())
    return total


@torch.no_grad()
def most_probable_noise(model: BNN, guide: LaplaceGuide, x: Tensor, y: Tensor) -> float:
    r"""Return the log of the noise scale with the largest evidence, for the weights at the mode.

    With the curvature :math:`G / \sigma^2` of the likelihood and :math:`P` of the prior, it is the
    maximum of

    .. math::
        \log p(y \mid \hat w, \sigma) - \tfrac12 \log |G / \sigma^2 + P| .

    For Gaussian noise it fulfils :math:`\sigma^2 = \mathrm{RSS} / (N - \gamma)`, with
    :math:`\gamma` parameters that the data determine (MacKay 1992). The joint density of weights
    and noise need not have a maximum: a network that can interpolate the rows lets the noise go to
    zero. The curvature is that of at most `NOISE_ROWS` rows, scaled to all of them.
    """
    likelihood: Any = model.likelihood
    now = float(likelihood.log_noise)
    device = guide.mode.device
    few = x[:: max(1, -(-len(x) // NOISE_ROWS))]
    diagonal = guide.mode.numel() > NOISE_UNKNOWNS
    scale = prior_curvature(model, guide).clamp(min=1e-12).rsqrt()
    curvature = gauss_newton(model, guide, few, diagonal=diagonal) * (len(x) / len(few))
    if diagonal:
        known = curvature * scale**2
    else:
        known = torch.linalg.eigvalsh(scale[:, None] * curvature * scale).clamp(min=0)
    values = _slots(model, guide, guide.mode)
    f = torch.cat([model.evaluate(values, rows.to(device)) for rows in x.split(4096)])
    targets = y.to(device)

    def negative_evidence(log_noise: float) -> float:
        observed = likelihood.distribution(f, f.new_tensor(math.exp(log_noise)))
        volume = torch.log1p(known * math.exp(2 * (now - log_noise))).sum()
        return float(0.5 * volume - observed.log_prob(targets).double().sum())

    bounds = (max(now - NOISE_RANGE, MIN_LOG_NOISE), now + NOISE_RANGE)
    return float(optimize.minimize_scalar(negative_evidence, bounds=bounds, method="bounded").x)


def _slots(model: BNN, guide: LaplaceGuide, flat: Tensor) -> dict[str, Tensor]:
    return slots_of_one(model, guide.constrained(flat)[0])


def _log_prior(model: BNN, guide: LaplaceGuide, flat: Tensor) -> Tensor:
    sites, corrections = guide.constrained(flat)
    with pyro.validation_enabled(False):
        conditioned = poutine.condition(model.sample_slots, data=sites)
        density = poutine.trace(conditioned).get_trace().log_prob_sum()
    return torch.stack([torch.as_tensor(density), *corrections.values()]).sum()


def _chunks(model: BNN, x: Tensor, size: int) -> list[Tensor]:
    device = next(model.parameters()).device
    with torch.no_grad():
        num_outputs = model.eval().net(x[:1].to(device)).shape[-1] + 1
    rows = max(1, CHUNK_NUMBERS // (num_outputs * size))
    return [chunk.to(device) for chunk in x.split(rows)]


def _information(model: BNN, outputs: Tensor) -> Tensor:
    r"""Return the Fisher information of one observation about the outputs, row by row.

    It is the second derivative of the divergence :math:`KL(p_{f_0} \| p_f)` at :math:`f = f_0`.
    """
    with torch.enable_grad():
        moving = outputs.detach().requires_grad_()
        divergence = _divergence(_observed(model, outputs.detach()), _observed(model, moving))
        (first,) = torch.autograd.grad(divergence.sum(), moving, create_graph=True)
        rows = [
            torch.autograd.grad(first[:, index].sum(), moving, retain_graph=True)[0]
            for index in range(outputs.shape[1])
        ]
    return torch.stack(rows, dim=1)


def _observed(model: BNN, outputs: Tensor) -> Distribution:
    with pyro.validation_enabled(False):
        seen = (outputs[:, :-1], outputs[:, -1]) if "noise" in model.slots else (outputs,)
        observed: Distribution = model.likelihood.distribution(*seen)
    return observed


def _divergence(p: Distribution, q: Distribution) -> Tensor:
    if isinstance(p, StudentT) and isinstance(q, StudentT):
        # There is no closed form, but the second derivatives are known.
        loc, scale = (q.loc - p.loc) / p.scale, (q.scale - p.scale) / p.scale
        by_loc: Tensor = 0.5 * (p.df + 1) / (p.df + 3) * loc.square()
        return by_loc + p.df / (p.df + 3) * scale.square()
    try:
        return kl_divergence(p, q)
    except NotImplementedError:
        raise ConfigError(
            f"the Fisher information of the likelihood {type(p).__name__} is not known, but a "
            "Laplace approximation needs it. Register its KL divergence from itself."
        ) from None
