r"""Quality of the variational approximation, estimated from draws of the guide.

With draws :math:`\theta_s \sim q` and weights
:math:`\log w_s = \log p(y, \theta_s) - \log q(\theta_s)`:

* **k-hat** is the shape of the generalised Pareto distribution fitted to the largest weights. Below
  `KHAT_GOOD`, importance sampling corrects the approximation; below `KHAT_USABLE` it does so with
  some noise. Above that, the guide is a poor approximation of the posterior (Vehtari et al. 2024;
  Yao et al. 2018).
* **The ELBO gap** :math:`\log \frac1S \sum_s w_s - \frac1S \sum_s \log w_s` estimates
  :math:`KL(q\,\|\,p)` from below (Burda et al. 2016; Domke and Sheldon 2018).

Both concern the joint distribution of *all* unknowns. In a network most of them are not identified,
and k-hat grows with their number even if the predictions are good: with more than a few hundred
weights, a factorised guide rarely has a k-hat below 0.7. The level therefore depends on the case:

=============================  ==========================================================
more than `MAX_DIMENSION`      ``info``: not informative about predictions
none is identified             ``info``: other modes of a network have the same predictions
small, with a truth            ``warn``: the distances to the truth decide
small, without a truth         ``fail``: no other check would detect it
=============================  ==========================================================
"""

from functools import partial

import numpy as np
import xarray
from arviz_stats.base import array_stats
from scipy.special import logsumexp

from zoo.diagnostics.finding import Finding, Level, format_number, level_of
from zoo.diagnostics.reading import Array, dimension_of, log_weights
from zoo.diagnostics.uses import kind_of

KHAT = partial(Finding, "approximation.khat", source="Vehtari et al. (2024); Yao et al. (2018)")
GAP = partial(
    Finding,
    "approximation.elbo_gap",
    source="Burda, Grosse and Salakhutdinov (2016); Domke and Sheldon (2018)",
)

#: Importance sampling is reliable below this k-hat.
KHAT_GOOD = 0.5
#: Importance sampling is usable below this k-hat, given enough draws.
KHAT_USABLE = 0.7
#: Smallest number of draws for fitting the Pareto tail.
MIN_DRAWS = 100
#: Log weights that differ by less are equal up to rounding.
EQUAL_WEIGHTS = 1e-8
#: Twice the KL of two unit Gaussians one standard deviation apart, which is 0.5.
GAP_NATS = 1.0


def approximation_findings(tree: xarray.DataTree, has_truth: bool = False) -> list[Finding]:
    """Check ``lp - log_q`` of group ``sample_stats``: finite, k-hat, ELBO gap.

    `has_truth` tells whether there is a truth to compare with; see the table above.
    """
    weights = log_weights(tree)
    if weights is None:
        return []
    # The KL is infinite if the guide has mass where the model has none.
    bad = int((~np.isfinite(weights)).sum())
    if bad:
        message = (
            "The log density of the model or the guide is not finite at "
            f"{bad} of {len(weights)} draws."
        )
        advice = (
            "Check that the support of the guide lies within that of the prior, and look for "
            "overflow."
        )
        return [KHAT("fail", bad, 0, message, advice)]
    khat, judged = pareto_khat(weights), weights_tell(tree)
    return [
        _khat_finding(khat, len(weights), dimension_of(tree), has_truth, judged=judged),
        _gap_finding(weights, khat, judged=judged),
    ]


def pareto_khat(log_weights: Array) -> float:
    """Return the Pareto shape of the largest weights, or NaN if there are too few draws.

    Equal weights, those of a perfect guide, give minus infinity.
    """
    return smoothed_log_weights(log_weights)[1]


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


def usable_khat(num_draws: int) -> float:
    r"""Return the largest usable k-hat for S draws: :math:`\min(1 - 1/\log_{10} S, 0.7)`.

    Vehtari et al. (2024).
    """
    return float(min(1 - 1 / np.log10(num_draws), KHAT_USABLE)) if num_draws > 10 else 0.0


def weights_tell(tree: xarray.DataTree) -> bool:
    """Return whether importance weights are informative: few unknowns, some of them identified."""
    return kind_of(tree).weights_tell


def _khat_finding(
    khat: float, num_draws: int, dimension: int, has_truth: bool, *, judged: bool
) -> Finding:
    threshold = usable_khat(num_draws)
    if np.isnan(khat):
        message = f"k-hat needs at least {MIN_DRAWS} draws; there are {num_draws}."
        return KHAT("info", None, threshold, message, "Take more draws from the guide.")
    if np.isneginf(khat):
        message = "All importance weights are equal: the guide is the posterior."
        return KHAT("ok", khat, threshold, message)
    shown = f"The k-hat of the guide is {format_number(khat)}"
    if khat <= threshold:
        quality = "reliable" if khat <= KHAT_GOOD else "usable"
        message = f"{shown}: importance sampling from the guide is {quality}."
        return KHAT("ok", khat, threshold, message)
    shown += f" (usable up to {format_number(threshold)})"
    level: Level
    if not judged:
        level = "info"
        message = (
            f"{shown}. This is expected for the {dimension} unknowns of a network and does not "
            "mean that predictions are poor."
        )
        advice = "Assess this fit by its predictions and calibration."
    else:
        level = "warn" if has_truth else "fail"
        message = (
            f"{shown}: the guide is a poor approximation of the posterior of its {dimension} "
            "unknowns."
        )
        advice = "Use a richer guide (full rank, low rank, a flow), or sample with NUTS."
    return KHAT(level, khat, threshold, message, advice)


def _gap_finding(weights: Array, khat: float, *, judged: bool) -> Finding:
    elbo = float(weights.mean())
    evidence = float(logsumexp(weights) - np.log(len(weights)))
    gap = max(0.0, evidence - elbo)
    error = float(weights.std() / np.sqrt(len(weights)))
    bound = "at least " if khat > usable_khat(len(weights)) else ""
    message = (
        f"The ELBO, {format_number(elbo)} ± {format_number(error)} nats, is {bound}"
        f"{format_number(gap)} nats below the log evidence estimated by importance sampling."
    )
    level = level_of(gap - 3 * error, GAP_NATS, judged=judged)
    advice = "Compare ELBOs only between guides of the same family."
    return GAP(level, gap, GAP_NATS, message, advice)
