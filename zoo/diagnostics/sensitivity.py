r"""Did the prior matter? Contrast of prior and posterior, and power-scaling.

* **Contrast**: how much narrower than its prior a site became, and how far it moved. Widths are
  interquartile ranges, because many priors here (Cauchy, horseshoe) have no variance:
  contraction is :math:`1 - (\mathrm{IQR}_{post} / \mathrm{IQR}_{prior})^2`, the usual
  :math:`1 - \mathrm{var}_{post} / \mathrm{var}_{prior}` for Gaussians (Betancourt 2018; Schad et
  al. 2021).
* **Power-scaling** (Kallioinen et al. 2023): the prior (or the likelihood) is raised to a power a
  little off 1, and the posterior's draws are re-weighted accordingly. A sensitivity above
  `SENSITIVE` counts. It is measured on the network's outputs and on scalar sites; the draws are
  those of the guide, so it tells how the *fit* responds.

The log prior of a network is a sum over thousands of weights, and re-weighting by it makes noise
that looks like sensitivity. So a value above the threshold is compared with what shuffled weights
give, and called sensitivity only above that.
"""

import arviz_stats
import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, Level, format_number
from zoo.diagnostics.reading import (
    SEED,
    Array,
    draws,
    identified,
    is_constant,
    labels,
    parameters,
    variable,
    variables,
)

CONTRAST_SOURCE = "Betancourt (2018); Schad, Betancourt and Vasishth (2021)"
POWER_SOURCE = "Kallioinen et al. (2023)"

#: A site that keeps more than nine tenths of its prior variance was hardly informed by the data.
LOW_CONTRACTION = 0.1
#: A posterior median this many prior sds from the prior's median: prior and data disagree.
CONFLICT_SDS = 3.0
#: Power-scaling sensitivity that counts.
SENSITIVE = 0.05
#: Columns that are power-scaled.
MAX_COLUMNS = 16
#: Shuffles behind the noise of a sensitivity.
SHUFFLES = 20
#: Draws below which re-weighting is noise.
MIN_DRAWS = 100

#: Interquartile range of a standard Gaussian.
_GAUSSIAN_IQR = 1.3489795003921634


def sensitivity_findings(tree: xarray.DataTree) -> list[Finding]:
    """Run the checks of this file that the groups of the tree allow."""
    return [*contrast_findings(tree), *power_scaling_findings(tree)]


def contrast_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare group ``prior`` with ``posterior``, site by site."""
    rows = []
    for name in parameters(tree):
        after, before = variable(tree, "posterior", name), variable(tree, "prior", name)
        if after is None or before is None:
            continue
        compared = _contrast(draws(before), draws(after))
        if compared is not None:
            rows.append((name, *compared))
    if not rows:
        return []
    flattest = min(rows, key=lambda row: row[1])
    moved = max(rows, key=lambda row: row[2])
    few = [name for name, contraction, _ in rows if contraction < LOW_CONTRACTION]
    names = f": {', '.join(few[:5])}{', ...' if len(few) > 5 else ''}" if few else ""
    contraction = Finding(
        "sensitivity.contraction",
        "info",
        flattest[1],
        LOW_CONTRACTION,
        f"{len(few)} of {len(rows)} sites are about as wide as their prior{names}; the least "
        f"contraction is {format_number(flattest[1])}, of {flattest[0]}.",
        "What is said about these sites comes from the prior." if few else "",
        CONTRAST_SOURCE,
    )
    conflict = moved[2] > CONFLICT_SDS
    # Priors of network weights are often made to be left: only what is identified is judged.
    judged = "identified" not in tree.attrs or moved[0] in identified(tree)
    poor: Level = "warn" if judged else "info"
    shift = Finding(
        "sensitivity.prior_shift",
        poor if conflict else "ok",
        moved[2],
        CONFLICT_SDS,
        f"The site that moved most from its prior is {moved[0]}, by {format_number(moved[2])} "
        "prior sds in the median of its elements.",
        "Prior and data disagree about it: widen its prior, or scale the data." if conflict else "",
        CONTRAST_SOURCE,
    )
    return [contraction, shift]


def _contrast(before: Array, after: Array) -> tuple[float, float] | None:
    """Return the median contraction and the median shift over a site's elements."""
    if before.shape[1] != after.shape[1] or min(len(before), len(after)) < 4:
        return None
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return None
    low, middle, high = np.quantile(before, [0.25, 0.5, 0.75], axis=0)
    low_after, middle_after, high_after = np.quantile(after, [0.25, 0.5, 0.75], axis=0)
    varies = high > low
    if not varies.any():
        return None
    width = (high - low)[varies]
    contraction = 1 - ((high_after - low_after)[varies] / width) ** 2
    shift = np.abs(middle_after - middle)[varies] / (width / _GAUSSIAN_IQR)
    return float(np.median(contraction)), float(np.median(shift))


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
    sensitive = bool(prior[k] > max(SENSITIVE, noise))
    level: Level = "warn" if sensitive else "ok"
    if not sensitive:
        diagnosis, advice = "the prior hardly matters for the predictions", ""
        if prior[k] > SENSITIVE:
            diagnosis = f"not more than the noise of re-weighting, {format_number(noise)}"
    elif likelihood[k] > SENSITIVE:
        diagnosis = "prior and likelihood pull in different directions"
        advice = "Swap the prior and compare; if the conclusions change, report both."
    else:
        diagnosis = "the prior is strong and the data say little"
        advice = "Justify this prior, or bring more data: the result comes from the prior."
    return [
        Finding(
            "sensitivity.power_scaling",
            level,
            float(prior[k]),
            SENSITIVE,
            f"Power-scaling sensitivity is largest at {columns[k]} of {len(columns)} quantities: "
            f"{format_number(float(prior[k]))} to the prior and "
            f"{format_number(float(likelihood[k]))} to the likelihood; {diagnosis}.",
            advice,
            POWER_SOURCE,
        )
    ]


def power_scaling_table(tree: xarray.DataTree) -> dict[str, tuple[float, float]]:
    """Return the sensitivity of every judged quantity to prior and likelihood.

    Returns
    -------
    dict
        From names to two numbers; empty where the tree lacks the groups.
    """
    scaled = _scaled(tree)
    if scaled is None:
        return {}
    columns, values, log_prior, log_likelihood = scaled
    prior = power_scaling(values, log_prior).tolist()
    likelihood = power_scaling(values, log_likelihood).tolist()
    return dict(zip(columns, zip(prior, likelihood, strict=True), strict=True))


def power_scaling(values: Array, log_density: Array) -> Array:
    """Return ArviZ's power-scaling sensitivity of every column.

    Parameters
    ----------
    values
        Shape ``(draws, columns)``.
    log_density
        Log density of the part that is scaled, per draw.
    """
    if is_constant(log_density[:, None])[0]:
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
    """Return names and draws of what is judged, log prior and log likelihood; None if lacking."""
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
    varies = np.isfinite(values).all(0)
    varies[varies] &= ~is_constant(values[:, varies])
    kept = np.flatnonzero(varies)
    if len(kept) > MAX_COLUMNS:
        kept = kept[np.linspace(0, len(kept) - 1, MAX_COLUMNS).round().astype(int)]
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
    """Return the largest sensitivity over shuffles, in which nothing can be sensitive."""
    rng = np.random.default_rng(SEED)
    return max(
        float(power_scaling(values, rng.permutation(log_density)).max()) for _ in range(SHUFFLES)
    )
