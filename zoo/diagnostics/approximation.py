r"""Quality of the variational approximation of small models.

With draws :math:`\theta_s \sim q` and weights
:math:`\log w_s = \log p(y, \theta_s) - \log q(\theta_s)`:

* **Means and sds of parameters** are compared with those of the posterior, which importance
  sampling from a normal distribution at the mode gives for most regressions
  (`zoo.infer.importance`). The thresholds are those of the comparison with NUTS
  (`zoo.diagnostics.truth_distance`).
* **k-hat** is the shape of the generalised Pareto distribution fitted to the largest weights. Above
  `KHAT_USABLE`, the guide is a poor approximation of the posterior (Vehtari et al. 2024; Yao et
  al. 2018).
* **The ELBO gap** is :math:`KL(q\,\|\,p)`, the log evidence minus the ELBO. Without a reference the
  evidence is estimated by :math:`\log \frac1S \sum_s w_s`, which is too small for a poor guide, so
  the gap is a lower bound (Burda et al. 2016; Domke and Sheldon 2018).

All of this concerns the joint distribution of *all* unknowns. In a network most of them are not
identified, and k-hat grows with their number even if the predictions are good: with more than a few
hundred weights, a factorised guide rarely has a k-hat below 0.7. The level of k-hat depends on the
case:

=============================  ==========================================================
more than `MAX_DIMENSION`      ``info``: not informative about predictions
none is identified             ``info``: other modes of a network have the same predictions
small, with a reference        ``info``: the distances to the posterior decide
small, without a reference     ``fail``: no other check would detect it
=============================  ==========================================================

A threshold is crossed only if the estimate is beyond it by `SURE` standard errors.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray
from scipy.special import logsumexp

from zoo.diagnostics.finding import Finding, Level, format_number, level_of
from zoo.diagnostics.reading import Array, dimension_of, identified, log_weights, variable
from zoo.diagnostics.truth_distance import RATIO_FAIL, RATIO_WARN, SHIFT_FAIL, SHIFT_WARN
from zoo.diagnostics.uses import kind_of
from zoo.infer.psis import (
    MIN_DRAWS,
    khat_error,
    smoothed_log_weights,
    usable_khat,
)

KHAT = partial(Finding, "approximation.khat", source="Vehtari et al. (2024); Yao et al. (2018)")
GAP = partial(
    Finding,
    "approximation.elbo_gap",
    source="Burda, Grosse and Salakhutdinov (2016); Domke and Sheldon (2018)",
)

MODES = partial(Finding, "approximation.modes", source="share of a mode by Laplace's approximation")
MEAN = partial(
    Finding,
    "approximation.mean",
    source="threshold from interval coverage; Vehtari et al. (2024) for the reference",
)
SD = partial(
    Finding,
    "approximation.sd",
    source="threshold from interval coverage; Vehtari et al. (2024) for the reference",
)

#: Importance sampling is reliable below this k-hat.
KHAT_GOOD = 0.5
#: Share of the mass at modes that the guide leaves out: warning and failure.
MISSED_WARN, MISSED_FAIL = 0.01, 0.1
#: Twice the KL of two unit Gaussians one standard deviation apart, which is 0.5; and what Kass and
#: Raftery (1995) call very strong evidence for one of two models.
GAP_NATS, GAP_FAIL = 1.0, 5.0
#: Standard errors by which an estimate must be beyond a threshold.
SURE = 2.0


def approximation_findings(tree: xarray.DataTree, has_truth: bool = False) -> list[Finding]:
    """Check means and sds of parameters, k-hat and the ELBO gap.

    `has_truth` tells whether there is a truth to compare with; see the table above.
    """
    weights = _weights(tree)
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
    moments = _moments_findings(tree)
    decided = has_truth or bool(moments)
    return [
        *moments,
        *_modes_findings(tree),
        _khat_finding(khat, len(weights), dimension_of(tree), decided=decided, judged=judged),
        _gap_finding(tree, weights, khat, judged=judged),
    ]


def _weights(tree: xarray.DataTree) -> Array | None:
    """Return the log weights of draws made for this check, or else of the stored draws."""
    found = variable(tree, "importance", "log_weight")
    return log_weights(tree) if found is None else found.to_numpy().astype(np.float64)


@dataclass(frozen=True)
class _Element:
    """One element of a parameter: shift in true sds, log ratio of sds, and their errors."""

    label: str
    shift: float
    shift_error: float
    ratio: float
    ratio_error: float


def _elements(tree: xarray.DataTree) -> list[_Element]:
    """Return all elements of the parameters that the guide and the reference have."""
    if "importance" not in tree.children:
        return []
    group = tree["importance"].to_dataset()
    if "source" not in group.coords or "posterior" not in group["source"].to_numpy():
        return []
    found = []
    for name in identified(tree):
        if name not in group:
            continue
        array = group[name]
        guide, truth = (
            array.sel(source=source).to_numpy().reshape(4, -1) for source in ("guide", "posterior")
        )
        shape = array.shape[2:]
        for column, index in enumerate(np.ndindex(*shape)):
            (m, s, m_error, s_error), (mean, sd, mean_error, sd_error) = (
                guide[:, column],
                truth[:, column],
            )
            if not (np.isfinite([m, s, mean, sd]).all() and s > 0 and sd > 0):
                continue
            label = f"{name}[{', '.join(map(str, index))}]" if shape else name
            found.append(
                _Element(
                    label,
                    abs(m - mean) / sd,
                    math.hypot(m_error, mean_error) / sd,
                    s / sd,
                    s / sd * math.hypot(s_error / s, sd_error / sd),
                )
            )
    return found


def _moments_findings(tree: xarray.DataTree) -> list[Finding]:
    elements = _elements(tree)
    if not elements:
        return []
    draws = int(tree["importance"].attrs.get("draws", 0))
    how = f"the posterior, by importance sampling with {draws} draws"
    return [_mean_finding(elements, how), _sd_finding(elements, how)]


def _modes_findings(tree: xarray.DataTree) -> list[Finding]:
    """Check whether the guide has draws at all modes that were found."""
    attributes = tree["importance"].attrs if "importance" in tree.children else {}
    if "missed" not in attributes:
        return []
    number, missed = int(attributes["modes"]), float(attributes["missed"])
    level = level_of(missed, MISSED_WARN, MISSED_FAIL)
    message = (
        f"Searches from several starts found {number} modes of the posterior; those with "
        f"{format_number(100 * missed)} % of the mass have no draws of the guide."
    )
    advice = (
        "Sample with NUTS (--truth), which weighs the modes, or remove a symmetry of the model."
    )
    threshold = MISSED_FAIL if level == "fail" else MISSED_WARN
    return [MODES(level, missed, threshold, message, advice)]


def _mean_finding(elements: list[_Element], how: str) -> Finding:
    worst = max(elements, key=lambda e: e.shift - SURE * e.shift_error)
    sure = worst.shift - SURE * worst.shift_error
    level = level_of(sure, SHIFT_WARN, SHIFT_FAIL)
    message = (
        f"The mean of {worst.label} is {format_number(worst.shift)} ± "
        f"{format_number(worst.shift_error)} sds from that of {how}; all others are closer."
    )
    advice = "Train longer, or use a richer guide."
    threshold = SHIFT_FAIL if level == "fail" else SHIFT_WARN
    return MEAN(level, worst.shift, threshold, message, advice)


def _sd_finding(elements: list[_Element], how: str) -> Finding:
    """Return the finding on the ratio of sds that is furthest from one, in either direction."""

    def distance(element: _Element) -> float:
        away = abs(math.log(element.ratio))
        return away - SURE * element.ratio_error / element.ratio

    worst = max(elements, key=distance)
    level = level_of(distance(worst), -math.log(RATIO_WARN), -math.log(RATIO_FAIL))
    narrow = worst.ratio < 1
    message = (
        f"The sd of {worst.label} is {format_number(worst.ratio)} ± "
        f"{format_number(worst.ratio_error)} times that of {how}; all others are closer."
    )
    advice = (
        "Use guide=full_rank, which has the correlations that a factorised guide leaves out, or "
        "sample with NUTS."
        if narrow
        else "Train longer: the guide is too wide."
    )
    ratio = RATIO_FAIL if level == "fail" else RATIO_WARN
    return SD(level, worst.ratio, ratio if narrow else 1 / ratio, message, advice)


def pareto_khat(log_weights: Array) -> float:
    """Return the Pareto shape of the largest weights, or NaN if there are too few draws.

    Equal weights, those of a perfect guide, give minus infinity.
    """
    return smoothed_log_weights(log_weights)[1]


def weights_tell(tree: xarray.DataTree) -> bool:
    """Return whether importance weights are informative: few unknowns, some of them identified."""
    return kind_of(tree).weights_tell


def _khat_finding(
    khat: float, num_draws: int, dimension: int, *, decided: bool, judged: bool
) -> Finding:
    threshold = usable_khat(num_draws)
    if np.isnan(khat):
        message = f"k-hat needs at least {MIN_DRAWS} draws; there are {num_draws}."
        level: Level = "unchecked" if judged and not decided else "info"
        return KHAT(level, None, threshold, message, "Take more draws from the guide.")
    if np.isneginf(khat):
        message = "All importance weights are equal: the guide is the posterior."
        return KHAT("ok", khat, threshold, message)
    error = khat_error(khat, num_draws)
    shown = f"The k-hat of the guide is {format_number(khat)} ± {format_number(error)}"
    if khat <= threshold:
        quality = "reliable" if khat <= KHAT_GOOD else "usable"
        message = f"{shown}: importance sampling from the guide is {quality}."
        return KHAT("ok", khat, threshold, message)
    shown += f" (usable up to {format_number(threshold)})"
    if not judged:
        level = "info"
        message = (
            f"{shown}. This is expected for the {dimension} unknowns of a network and does not "
            "mean that predictions are poor."
        )
        advice = "Assess this fit by its predictions and calibration."
    elif decided:
        level = "info"
        message = f"{shown}. Means and sds of parameters tell how far the guide is off."
        advice = "Read the comparison of means and sds."
    else:
        level = "fail" if khat - SURE * error > threshold else "warn"
        message = (
            f"{shown}: the guide is a poor approximation of the posterior of {dimension} "
            f"{'unknown' if dimension == 1 else 'unknowns'}."
        )
        advice = "Use a richer guide (full rank, low rank, a flow), or compare with NUTS (--truth)."
    return KHAT(level, khat, threshold, message, advice)


def _gap_finding(tree: xarray.DataTree, weights: Array, khat: float, *, judged: bool) -> Finding:
    elbo = float(weights.mean())
    error = float(weights.std() / np.sqrt(len(weights)))
    attributes = tree["importance"].attrs if "importance" in tree.children else {}
    bound = ""
    if "log_evidence" in attributes:
        evidence = float(attributes["log_evidence"])
        error = math.hypot(error, float(attributes["log_evidence_error"]))
    else:
        evidence = float(logsumexp(weights) - np.log(len(weights)))
        bound = "at least " if khat > usable_khat(len(weights)) else ""
    gap = evidence - elbo
    message = (
        f"The ELBO, {format_number(elbo)} nats, is {bound}{format_number(max(gap, 0.0))} ± "
        f"{format_number(error)} nats below the log evidence estimated by importance sampling."
    )
    limits = (GAP_NATS, GAP_FAIL) if judged else (GAP_NATS,)
    level = level_of(gap - SURE * error, *limits, judged=judged)
    advice = "Compare ELBOs only between guides of the same family, or compare log evidences."
    return GAP(level, gap, GAP_FAIL if level == "fail" else GAP_NATS, message, advice)
