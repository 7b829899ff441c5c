r"""Prior sensitivity: contraction of the posterior, and power-scaling.

* **Contraction**: how much narrower a site is than its prior. Widths are interquartile ranges,
  because many priors here (Cauchy, horseshoe) have no variance. The contraction is
  :math:`1 - (\mathrm{IQR}_{post} / \mathrm{IQR}_{prior})^2`, which for Gaussians is the usual
  :math:`1 - \mathrm{var}_{post} / \mathrm{var}_{prior}` (Betancourt 2018; Schad et al. 2021).
* **Power-scaling** (Kallioinen et al. 2023): the prior (or the likelihood) is raised to a power
  close to 1, and the posterior draws are re-weighted accordingly. A sensitivity above `SENSITIVE`
  is reported. It is computed for network outputs and scalar sites. The draws are those of the
  guide, so it measures how the *fit* responds.

The log prior of a network is a sum over thousands of weights, and re-weighting by it creates noise
that looks like sensitivity. A value above the threshold is therefore reported only if it also
exceeds the value for shuffled weights.
"""

from functools import partial

import arviz_stats
import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number, level_of
from zoo.diagnostics.reading import (
    SEED,
    Array,
    draws,
    labels,
    parameters,
    prior_and_posterior,
    thinned,
    variable,
    variables,
    varies,
)

CONTRACTION = partial(
    Finding,
    "sensitivity.contraction",
    source="Betancourt (2018); Schad, Betancourt and Vasishth (2021)",
)
POWER_SCALING = partial(Finding, "sensitivity.power_scaling", source="Kallioinen et al. (2023)")

#: A site with less contraction keeps more than nine tenths of its prior variance.
LOW_CONTRACTION = 0.1
#: Threshold of the power-scaling sensitivity.
SENSITIVE = 0.05
#: Largest number of power-scaled columns.
MAX_COLUMNS = 16
#: Shuffles for the noise of a sensitivity.
SHUFFLES = 20
#: Smallest number of draws for re-weighting.
MIN_DRAWS = 100


def sensitivity_findings(tree: xarray.DataTree) -> list[Finding]:
    """Run the sensitivity checks for which the tree has data."""
    return [*contraction_findings(tree), *power_scaling_findings(tree)]


def contraction_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare group ``prior`` with ``posterior``, site by site."""
    rows = []
    for name, before, after in prior_and_posterior(tree):
        contraction = _contraction(before, after)
        if contraction is not None:
            rows.append((name, contraction))
    if not rows:
        return []
    flattest, contraction = min(rows, key=lambda row: row[1])
    few = [name for name, value in rows if value < LOW_CONTRACTION]
    names = f": {', '.join(few[:5])}{', ...' if len(few) > 5 else ''}" if few else ""
    message = (
        f"{len(few)} of {len(rows)} sites are about as wide as their prior{names}. The smallest "
        f"contraction is {format_number(contraction)} ({flattest})."
    )
    advice = "Treat the posterior of these sites as prior information." if few else ""
    return [CONTRACTION("info", contraction, LOW_CONTRACTION, message, advice)]


def _contraction(before: Array, after: Array) -> float | None:
    """Return the median contraction over a site's elements."""
    if before.shape[1] != after.shape[1] or min(len(before), len(after)) < 4:
        return None
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return None
    low, high = np.quantile(before, [0.25, 0.75], axis=0)
    low_after, high_after = np.quantile(after, [0.25, 0.75], axis=0)
    wide = high > low
    if not wide.any():
        return None
    ratios = (high_after - low_after)[wide] / (high - low)[wide]
    return float(np.median(1 - ratios**2))


def power_scaling_findings(tree: xarray.DataTree) -> list[Finding]:
    """Measure the sensitivity of outputs and scalar sites to prior and likelihood."""
    scaled = _scaled(tree)
    if scaled is None:
        return []
    columns, values, log_prior, log_likelihood = scaled
    prior = power_scaling(values, log_prior)
    likelihood = power_scaling(values, log_likelihood)
    k = int(prior.argmax())
    noise = _noise(values, log_prior) if prior[k] > SENSITIVE else 0.0
    threshold = max(SENSITIVE, noise)
    # A prior that matters is no fault of a fit: it is reported. `prior.conflict` judges.
    level = level_of(float(prior[k]), threshold, judged=False)
    if level == "ok":
        diagnosis, advice = "the prior has little effect on the predictions", ""
        if prior[k] > SENSITIVE:
            diagnosis = f"this is within the noise of re-weighting, {format_number(noise)}"
    elif likelihood[k] > SENSITIVE:
        diagnosis = "prior and likelihood are in conflict"
        advice = "Compare with another prior. If the conclusions change, report both."
    else:
        diagnosis = "the prior is strong compared with the data"
        advice = "Justify this prior or collect more data: the prior dominates the result."
    value = float(prior[k])
    message = (
        f"The largest power-scaling sensitivity of {len(columns)} quantities is at {columns[k]}: "
        f"{format_number(value)} to the prior and {format_number(float(likelihood[k]))} to the "
        f"likelihood; {diagnosis}."
    )
    return [POWER_SCALING(level, value, threshold, message, advice)]


def power_scaling_table(tree: xarray.DataTree) -> dict[str, tuple[float, float]]:
    """Return the sensitivity to prior and likelihood by quantity; empty if groups are missing."""
    scaled = _scaled(tree)
    if scaled is None:
        return {}
    columns, values, log_prior, log_likelihood = scaled
    prior = power_scaling(values, log_prior).tolist()
    likelihood = power_scaling(values, log_likelihood).tolist()
    return dict(zip(columns, zip(prior, likelihood, strict=True), strict=True))


def power_scaling(values: Array, log_density: Array) -> Array:
    """Return ArviZ's sensitivity of every column to a component, given its log density per draw."""
    if not varies(log_density[:, None])[0]:
        return np.zeros(values.shape[1])
    dims = ("chain", "draw")
    tree = xarray.DataTree.from_dict(
        {
            "posterior": xarray.Dataset({"f": ((*dims, "column"), values[None])}),
            "log_prior": xarray.Dataset({"log_density": (dims, log_density[None])}),
        }
    )
    return np.asarray(arviz_stats.psense(tree, group="prior")["f"].to_numpy(), np.float64)


def _scaled(tree: xarray.DataTree) -> tuple[list[str], Array, Array, Array] | None:
    """Return names and draws of the quantities, log prior and log likelihood, or None."""
    columns, values = _judged_columns(tree)
    log_prior = _total(tree, "log_prior")
    log_likelihood = _total(tree, "log_likelihood")
    if not columns or log_prior is None or log_likelihood is None:
        return None
    if not len(values) == len(log_prior) == len(log_likelihood) or len(values) < MIN_DRAWS:
        return None
    return columns, values, log_prior, log_likelihood


def _judged_columns(tree: xarray.DataTree) -> tuple[list[str], Array]:
    """Return at most `MAX_COLUMNS` varying outputs and scalar sites."""
    outputs = variable(tree, "functions", "f")
    arrays = [] if outputs is None else [outputs]
    for name in parameters(tree):
        array = variable(tree, "posterior", name)
        if array is not None and draws(array).shape[1] == 1:
            arrays.append(array)
    names = [label for array in arrays for label in labels(array)]
    if not names or len({len(draws(array)) for array in arrays}) > 1:
        return [], np.empty((0, 0))
    values = np.concatenate([draws(array) for array in arrays], axis=1)
    kept = thinned(np.flatnonzero(varies(values)), MAX_COLUMNS)
    return [names[k] for k in kept], values[:, kept]


def _total(tree: xarray.DataTree, group: str) -> Array | None:
    """Return the sum over all variables and elements of a group, per draw."""
    found = [variable(tree, group, name) for name in variables(tree, group)]
    parts = [draws(array).sum(1) for array in found if array is not None]
    if not parts or len({len(part) for part in parts}) > 1:
        return None
    total = np.sum(parts, axis=0)
    return total if np.isfinite(total).all() else None


def _noise(values: Array, log_density: Array) -> float:
    """Return the largest sensitivity to shuffled log densities, which is pure noise."""
    rng = np.random.default_rng(SEED)
    return max(
        float(power_scaling(values, rng.permutation(log_density)).max()) for _ in range(SHUFFLES)
    )
