"""Pareto-smoothed importance sampling: smoothed weights, k-hat and its error.

Reference: Vehtari, Simpson, Gelman, Yao and Gabry (2024), *Pareto Smoothed Importance Sampling*,
JMLR. The smoothing is ArviZ's.
"""

import math

import numpy as np
from arviz_stats.base import array_stats
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.floating]

#: Smallest number of draws for fitting the Pareto tail.
MIN_DRAWS = 100
#: Log weights that differ by less are equal up to rounding.
EQUAL_WEIGHTS = 1e-8
#: Seed of the random ties of PIT values.
PIT_SEED = 20240601
#: With more unknowns importance weights say nothing about predictions.
MAX_DIMENSION = 100
#: Importance sampling is usable below this k-hat, given enough draws.
KHAT_USABLE = 0.7


def smoothed_log_weights(log_weights: Array) -> tuple[Array, float]:
    """Return Pareto-smoothed log weights that sum to one, and k-hat.

    Equal weights are not smoothed and have a k-hat of minus infinity. Fewer than `MIN_DRAWS`
    weights are only normalised, and k-hat is NaN.
    """
    normalised = np.asarray(log_weights - logsumexp(log_weights), np.float64)
    if np.ptp(normalised) <= EQUAL_WEIGHTS:
        return normalised, -np.inf
    if len(normalised) < MIN_DRAWS:
        return normalised, np.nan
    # ArviZ expects log likelihoods, the negative log weights. A tail of few distinct values, as of
    # a saturated likelihood, is bounded: no Pareto shape can be fitted, and none is needed.
    try:
        with np.errstate(all="ignore"):
            smoothed, khat = array_stats.psislw(-normalised)
    except ValueError:
        return normalised, -np.inf
    if not np.isfinite(khat) or not np.isfinite(smoothed).all():
        return normalised, -np.inf
    return np.asarray(smoothed, np.float64), float(khat)


def khat_error(khat: float, num_draws: int) -> float:
    r"""Return the standard error of k-hat, :math:`(1 + k) / \sqrt M`.

    This is the asymptotic error of the maximum-likelihood shape of a generalised Pareto
    distribution from the :math:`M` largest of :math:`S` draws, :math:`M = \min(S / 5, 3 \sqrt S)`
    (Smith 1987, *Estimating Tails of Probability Distributions*).
    """
    if not math.isfinite(khat):
        return 0.0
    tail = math.ceil(min(0.2 * num_draws, 3 * math.sqrt(num_draws)))
    return max(0.0, 1 + khat) / math.sqrt(tail)


def usable_khat(num_draws: int) -> float:
    r"""Return the largest usable k-hat for S draws: :math:`\min(1 - 1/\log_{10} S, 0.7)`.

    Vehtari et al. (2024).
    """
    return float(min(1 - 1 / np.log10(num_draws), KHAT_USABLE)) if num_draws > 10 else 0.0


def effective_draws(log_weights: Array) -> float:
    """Return the effective number of draws of normalised log weights."""
    return float(np.exp(-logsumexp(2 * log_weights)))


def leave_one_out(
    log_likelihood: Array, correction: Array | None = None
) -> tuple[Array, Array, Array]:
    r"""Return elpd, Pareto k and smoothed weights of every row.

    Weights are :math:`\propto e^{c_s} / p(y_i \mid \theta_s)`, Pareto smoothed. The results equal
    those of ArviZ's ``loo`` and ``loo_approximate_posterior``, which raise an error for a row with
    the same likelihood in all draws. A network that is certain of a class has many such rows.
    `log_likelihood` has the shape ``(draws, rows)``; `correction` is c.
    """
    ratios = -log_likelihood if correction is None else correction[:, None] - log_likelihood
    smoothed = [smoothed_log_weights(column) for column in ratios.T]
    weights = np.stack([column for column, _ in smoothed], axis=1)
    elpd = np.asarray(logsumexp(weights + log_likelihood, axis=0), np.float64)
    return elpd, np.array([khat for _, khat in smoothed]), np.exp(weights)


def loo_pit(samples: Array, y: Array, weights: Array) -> Array:
    """Return the weighted fraction of draws below each observation; ties are broken at random."""
    noise = np.random.default_rng(PIT_SEED).uniform(size=len(y))
    below = (weights * (samples < y)).sum(0)
    ties = (weights * (samples == y)).sum(0)
    return np.asarray(np.clip(below + noise * ties, 0, 1), np.float64)
