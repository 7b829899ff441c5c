r"""A reference posterior of a small model by importance sampling, without a Markov chain.

The proposal is a normal distribution at the mode of the unconstrained log density, with the inverse
of its curvature as covariance. It is replaced by the weighted mean and covariance of its own draws
while these improve it (adaptive importance sampling, Cappé et al. 2004, *Population Monte Carlo*).
With draws :math:`u_s \sim g` and weights :math:`w_s = p(y, u_s) / g(u_s)`, smoothed by a Pareto
tail, the moments of the posterior and the evidence follow:

.. math::
    E[h] \approx \frac{\sum_s w_s h(u_s)}{\sum_s w_s}, \qquad
    \log p(y) \approx \log \frac1S \sum_s w_s

The result is used only if the k-hat of the weights is small. For regressions with up to a hundred
unknowns this takes about a second, and is more exact than a short run of NUTS; it does not work for
funnels, several modes, or hundreds of unknowns, and says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import logsumexp

from zoo.infer.nuts.density import LogDensity
from zoo.infer.psis import KHAT_USABLE, effective_draws, smoothed_log_weights

Array = NDArray[Any]

#: Number of draws: few enough that draws times rows stay below `MAX_ENTRIES`.
MIN_DRAWS, MAX_DRAWS, MAX_ENTRIES = 500, 4000, 400_000_000
#: Largest number of adaptations of the proposal, and the k-hat below which none is needed.
ADAPTATIONS = 3
GOOD_KHAT = 0.3
#: Smallest effective number of draws of a reference.
MIN_EFFECTIVE = 200.0
#: Step of the central differences of the gradient, relative to the scale of a coordinate.
DIFFERENCE = 1e-4
#: Iterations of a search for a mode, and further starts, fewer with many rows.
MAX_ITERATIONS = 500
FURTHER_STARTS, MANY_ROWS = 6, 50_000
#: Points closer than this many standard deviations are one mode. A mode whose mass is lower by more
#: nats, a thousandth, does not matter.
SAME_MODE, MAX_BELOW = 3.0, 7.0


class NoReferenceError(Exception):
    """There is no usable reference; the message says why."""


@dataclass(frozen=True)
class Mode:
    """A mode of the posterior: values by site, and the share of its mass among the modes."""

    values: dict[str, Array]
    share: float


class SeveralModesError(NoReferenceError):
    """There are several modes whose masses, by Laplace's approximation, matter."""

    def __init__(self, modes: Sequence[Mode]) -> None:
        super().__init__("the log density has several modes.")
        self.modes = tuple(modes)


@dataclass(frozen=True)
class Reference:
    """Weighted draws from the posterior.

    Attributes
    ----------
    values
        Constrained draws by site, shape ``(draws, ...)``.
    log_weights
        Smoothed log weights, which sum to one.
    khat
        Pareto shape of the weights.
    log_evidence, log_evidence_error
        Estimate of the log evidence, and its standard error.
    """

    values: dict[str, Array]
    log_weights: Array
    khat: float
    log_evidence: float
    log_evidence_error: float

    @property
    def effective(self) -> float:
        """The effective number of draws."""
        return effective_draws(self.log_weights)


@dataclass(frozen=True)
class _Proposal:
    """A normal distribution of flat vectors."""

    centre: Array
    #: Cholesky factor of the covariance.
    factor: Array

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return draws and their log densities."""
        noise = rng.standard_normal((number, len(self.centre)))
        constant = np.log(np.diag(self.factor)).sum() + 0.5 * len(self.centre) * math.log(2 * np.pi)
        return self.centre + noise @ self.factor.T, -0.5 * (noise**2).sum(1) - constant


def number_of_draws(num_rows: int) -> int:
    """Return how many draws are affordable with this many rows."""
    return int(np.clip(MAX_ENTRIES // max(1, num_rows), MIN_DRAWS, MAX_DRAWS))


def importance_reference(
    density: LogDensity, start: Mapping[str, Any], *, num_rows: int, seed: int
) -> Reference:
    """Return weighted draws from the posterior.

    Parameters
    ----------
    density
        The log density of the model.
    start
        Values by site at which the search for the mode starts.
    num_rows
        Number of rows of the data, which limits the number of draws.
    seed
        Seed of the draws.

    Raises
    ------
    NoReferenceError
        If the mode is not found, or the weights are too uneven.
    """
    rng, number = np.random.default_rng(seed), number_of_draws(num_rows)
    first = density.pack(start).numpy()
    more = FURTHER_STARTS if num_rows <= MANY_ROWS else 1
    proposal = _modes(density, [first, *rng.uniform(-2, 2, (more, density.size))])
    best: tuple[float, Array, Array, Array] | None = None
    for _ in range(1 + ADAPTATIONS):
        points, log_g = proposal.draw(number, rng)
        ratios = density.values(points) - log_g
        ratios = np.where(np.isnan(ratios), -np.inf, ratios)
        if not np.isfinite(ratios).any():
            raise NoReferenceError("the density is not finite around its mode.")
        smoothed, khat = smoothed_log_weights(np.maximum(ratios, ratios.max() - 700))
        if best is None or khat < best[0]:
            best = khat, points, ratios, smoothed
        if khat < GOOD_KHAT:
            break
        proposal = _adapted(points, smoothed)
    assert best is not None
    khat, points, ratios, smoothed = best
    effective = effective_draws(smoothed)
    if khat > KHAT_USABLE or effective < MIN_EFFECTIVE:
        raise NoReferenceError(
            f"its k-hat is {khat:.2g} (limit {KHAT_USABLE}) and {effective:.0f} of {number} draws "
            f"are effective (limit {MIN_EFFECTIVE:.0f})."
        )
    evidence = float(logsumexp(ratios) - math.log(number))
    relative = np.exp(ratios - evidence)
    error = float(relative.std() / math.sqrt(number))
    return Reference(density.unpack(points), smoothed, khat, evidence, error)


def _modes(density: LogDensity, starts: Sequence[Array]) -> _Proposal:
    """Return the normal distribution at the highest of the modes found from several starts.

    Its covariance is the inverse curvature, so that its mass is about that of the mode
    (Laplace's approximation). A second mode with a mass that matters is refused.
    """
    graph = density.capture()

    def negative(flat: Array) -> tuple[float, Array]:
        with torch.no_grad():
            value, slope = graph(torch.from_numpy(flat))
        if not math.isfinite(value) or not torch.isfinite(slope).all():
            return 1e300, np.zeros_like(flat)
        return -value.item(), -slope.numpy()

    def mode_from(start: Array) -> tuple[float, Array]:
        options = {"maxiter": MAX_ITERATIONS, "ftol": 1e-13, "gtol": 1e-6}
        found = optimize.minimize(negative, start, jac=True, method="L-BFGS-B", options=options)
        return float(found.fun), np.asarray(found.x)

    # A search that begins where the density is not finite goes nowhere.
    found = [mode_from(start) for start in starts if negative(start)[0] < 1e300]
    if not found:
        raise NoReferenceError("the density is not finite where the search for its mode starts.")
    height, mode = min(found, key=lambda pair: pair[0])
    modes = [_Proposal(mode, _covariance_factor(negative, mode))]
    masses = [0.0]
    for other_height, other in found:
        far = all(
            np.linalg.norm(np.linalg.solve(m.factor, other - m.centre)) > SAME_MODE for m in modes
        )
        if other_height - height > MAX_BELOW or not far:
            continue
        new = _Proposal(other, _covariance_factor(negative, other))
        volume = np.log(np.diag(new.factor) / np.diag(modes[0].factor)).sum()
        if height - other_height + volume > -MAX_BELOW:
            modes.append(new)
            masses.append(height - other_height + volume)
    if len(modes) > 1:
        shares = np.exp(np.array(masses) - logsumexp(masses))
        values = [density.unpack(m.centre[None]) for m in modes]
        first = [{name: value[0] for name, value in site.items()} for site in values]
        raise SeveralModesError([Mode(v, float(p)) for v, p in zip(first, shares, strict=True)])
    return modes[0]


def _covariance_factor(negative: Callable[[Array], tuple[float, Array]], mode: Array) -> Array:
    """Return the Cholesky factor of the inverse curvature, by differences of the gradient."""
    curvature = np.empty((len(mode), len(mode)))
    for index, value in enumerate(mode):
        step = np.zeros_like(mode)
        step[index] = DIFFERENCE * max(1.0, abs(value))
        rise = negative(mode + step)[1] - negative(mode - step)[1]
        curvature[index] = rise / (2 * step[index])
    try:
        inverse = np.linalg.inv((curvature + curvature.T) / 2)
        factor = np.linalg.cholesky(inverse)
    except np.linalg.LinAlgError:
        factor = np.full((1, 1), np.nan)
    if not np.isfinite(factor).all():
        raise NoReferenceError("the log density has no maximum with a positive curvature.")
    return factor


def _adapted(points: Array, log_weights: Array) -> _Proposal:
    """Return the normal distribution with the moments of weighted draws."""
    weights = np.exp(log_weights)
    centre = weights @ points
    deviations = points - centre
    covariance = (weights[:, None] * deviations).T @ deviations
    ridge = 1e-9 * np.trace(covariance) / len(centre) + 1e-300
    return _Proposal(centre, np.linalg.cholesky(covariance + ridge * np.eye(len(centre))))


def moments(values: Array, log_weights: Array) -> Array:
    """Return mean, sd, and the standard errors of both, of weighted draws.

    The result has the shape ``(4, ...)``.
    """
    weights = np.exp(log_weights).reshape(-1, *[1] * (values.ndim - 1))
    mean = (weights * values).sum(0)
    squares = (values - mean) ** 2
    variance = (weights * squares).sum(0)
    sd = np.sqrt(variance)
    mean_error = np.sqrt((weights**2 * squares).sum(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        sd_error = np.sqrt((weights**2 * (squares - variance) ** 2).sum(0)) / (2 * sd)
    return np.stack([mean, sd, mean_error, np.nan_to_num(sd_error)])
