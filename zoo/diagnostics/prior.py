"""Whether the prior can reach the data, and whether it holds the posterior back.

A prior that is wider than the data need costs little. One that cannot reach them is a mistake:
wrong units, or a scale that is far too small. Distances are measured against the furthest of all
draws from the prior, which also suits priors with heavy tails.
"""

from functools import partial

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number, level_of
from zoo.diagnostics.reading import (
    Array,
    identified,
    prior_and_posterior,
    replications,
    task_of,
    variable,
)

PRIOR_CHECK = partial(Finding, "predictive.prior_check", source="Box (1980); Gabry et al. (2019)")
HOLDS_BACK = partial(Finding, "prior.holds_back", source="Evans and Moshonov (2006)")
CONFLICT = partial(Finding, "prior.conflict", source="Evans and Moshonov (2006)")

#: Distance from the centre of the prior, in units of the furthest of all its draws: warning and
#: failure. Twice (five times) the furthest of 100 Gaussian draws is about 5 (12) sds.
FAR_WARN, FAR_FAIL = 2.0, 5.0
#: Smallest number of draws from the prior.
MIN_DRAWS = 20
#: Share of draws that overflow above which a prior is wide enough for anything.
OVERFLOW = 0.05
#: The posterior is held back if it has less than this share of the observed statistic.
REACHED = 0.5

#: Statistics that are compared from above: a prior that exceeds them does reach the data.
UPWARDS = (
    "interquartile range",
    "largest share of a class",
    "ratio of explained variance to the rest",
)
EXPLAINED = UPWARDS[-1]

#: By name: replicated values (draws), observed value, and values under the posterior.
Statistics = dict[str, tuple[Array, float, Array]]


def prior_findings(tree: xarray.DataTree) -> list[Finding]:
    """Run the checks of the prior for which the tree has data."""
    return [*reach_findings(tree), *conflict_findings(tree)]


def reach_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare statistics of the data with those of data replicated from the prior."""
    statistics = _stored(tree) or _computed(tree)
    if not statistics:
        return []
    distances = {name: _distance(name, *row[:2]) for name, row in statistics.items()}
    worst = max(distances, key=lambda name: distances[name])
    replicated, observed, _ = statistics[worst]
    finite = replicated[np.isfinite(replicated)]
    far = distances[worst]
    level = level_of(far, FAR_WARN, FAR_FAIL)
    beyond = "beyond" if far > 1 else "within"
    message = (
        f"The {worst} of the data, {format_number(observed)}, is {format_number(far)} times as far "
        f"out as the furthest of {len(replicated)} draws from the prior, {beyond} their range "
        f"(median {format_number(float(np.median(finite)) if finite.size else np.nan)})."
    )
    limit = FAR_FAIL if level == "fail" else FAR_WARN
    advice = "Widen the prior, or scale the data to its units: the prior cannot reach the data."
    if EXPLAINED not in statistics or not statistics[EXPLAINED][2].size:
        return [PRIOR_CHECK(level, far, limit, message, advice)]
    held = _holds_back(distances[EXPLAINED], *statistics[EXPLAINED])
    if worst == EXPLAINED and held.level == "ok" and level != "ok":
        # Such as the published scale of a horseshoe, whose tails let the data through.
        level, message = "info", f"{message} The posterior reaches the data all the same."
    return [PRIOR_CHECK(level, far, limit, message, advice), held]


def _holds_back(far: float, replicated: Array, observed: float, posterior: Array) -> Finding:
    """Check whether the posterior explains less than the data show, as its prior expects."""
    reached = float(np.nanmedian(posterior)) / max(observed, 1e-12)
    short = reached < REACHED
    message = (
        f"A linear function of the inputs explains {format_number(observed)} times as much as it "
        f"leaves in the data, the posterior {format_number(reached * observed)} times, and draws "
        f"from the prior at most {format_number(float(np.nanmax(replicated)))} times."
    )
    far = far if short else 0.0
    level = level_of(far, FAR_WARN, FAR_FAIL)
    advice = "Widen the prior: it keeps the posterior from what the data show."
    limit = FAR_FAIL if level == "fail" else FAR_WARN
    return HOLDS_BACK(level, far, limit, message, advice)


def _distance(name: str, replicated: Array, observed: float) -> float:
    """Return how far the observation is out, in units of the furthest draw."""
    finite = np.isfinite(replicated)
    if finite.mean() < 1 - OVERFLOW:
        return 0.0  # draws that overflow reach anything
    replicated = replicated[finite]
    centre = 0.0 if name in UPWARDS else float(np.median(replicated))
    furthest = float((replicated if name in UPWARDS else np.abs(replicated - centre)).max())
    away = observed - centre if name in UPWARDS else abs(observed - centre)
    if furthest > 0:
        return max(away, 0.0) / furthest
    return np.inf if away > 0 else 0.0


def _stored(tree: xarray.DataTree) -> Statistics:
    """Read the statistics that the fit computed."""
    arrays = {
        name: variable(tree, "prior_statistics", name)
        for name in ("replicated", "observed", "posterior")
    }
    replicated, observed, posterior = arrays.values()
    if replicated is None or observed is None or "statistic" not in observed.coords:
        return {}
    before = replicated.transpose(..., "statistic").to_numpy().astype(np.float64)
    after = np.zeros((0, len(observed)))
    if posterior is not None:
        after = posterior.transpose(..., "statistic").to_numpy().astype(np.float64)
    if len(before) < MIN_DRAWS:
        return {}
    return {
        str(name): (before[:, k], float(observed[k]), after[:, k])
        for k, name in enumerate(observed["statistic"].to_numpy())
    }


def _computed(tree: xarray.DataTree) -> Statistics:
    """Compute statistics from the group ``prior_predictive``, for trees without stored ones."""
    pair = replications(tree, "prior_predictive")
    if pair is None or len(pair[0]) < MIN_DRAWS:
        return {}
    replicated, y = pair
    finite = np.isfinite(y)
    if not finite.any():
        return {}
    replicated, y = replicated[:, finite], y[finite]
    nothing = np.zeros(0)
    if task_of(tree) == "classification":
        labels = np.unique(np.concatenate([y, replicated[np.isfinite(replicated)]]))
        shares = [
            np.max([(data == label).mean(-1) for label in labels], axis=0)
            for data in (replicated, y[None])
        ]
        return {UPWARDS[1]: (shares[0], float(shares[1][0]), nothing)}
    with np.errstate(all="ignore"):
        low, middle, high = np.quantile(replicated, [0.25, 0.5, 0.75], axis=1)
    own = np.quantile(y, [0.25, 0.5, 0.75])
    return {
        "median": (middle, float(own[1]), nothing),
        UPWARDS[0]: (high - low, float(own[2] - own[0]), nothing),
    }


def conflict_findings(tree: xarray.DataTree) -> list[Finding]:
    """Find the parameter that the data have pulled furthest from its prior."""
    rows = []
    for name, before, after in prior_and_posterior(tree):
        far = _pulled(before, after)
        if far is not None:
            rows.append((far, name))
    if not rows:
        return []
    judged = [row for row in rows if "identified" not in tree.attrs or row[1] in identified(tree)]
    far, name = max(judged or rows)
    message = (
        f"The posterior mean of {name} is {format_number(far)} times as far from the centre of its "
        "prior as the furthest draw from it."
    )
    advice = "Widen this prior, or rescale the data: prior and data contradict each other."
    if not judged:  # single weights of a network mean nothing
        return [CONFLICT("info", far, FAR_WARN, message)]
    level = level_of(far, FAR_WARN, FAR_FAIL)
    return [CONFLICT(level, far, FAR_FAIL if level == "fail" else FAR_WARN, message, advice)]


def _pulled(before: Array, after: Array) -> float | None:
    """Return the largest distance of a posterior mean, in units of the furthest prior draw.

    Elements are divided by their interquartile range, so that those of a site share their draws.
    """
    if before.shape[1] != after.shape[1] or len(before) < MIN_DRAWS:
        return None
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return None
    low, middle, high = np.quantile(before, [0.25, 0.5, 0.75], axis=0)
    wide = high > low
    if not wide.any():
        return None
    width = (high - low)[wide]
    furthest = float((np.abs(before - middle)[:, wide] / width).max())
    pulled = np.abs(after.mean(0) - middle)[wide] / width
    return float(pulled.max()) / furthest
