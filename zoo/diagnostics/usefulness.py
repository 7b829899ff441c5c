"""Whether a fit is any good: comparison with simple references on the same held-out rows.

The fit (group ``references``) stores errors and log densities of itself and of three references for
every held-out row: ``trivial`` ignores the inputs, ``linear`` is a penalised linear model, and
``kernel`` also follows curves. All comparisons are paired over rows.
"""

from functools import partial

import numpy as np
import xarray
from scipy import stats

from zoo.diagnostics.finding import (
    Finding,
    format_number,
    format_share,
    level_of,
    unchecked,
)
from zoo.diagnostics.reading import Array, task_of, variable

SKILL = partial(Finding, "usefulness.skill", source="Murphy (1988); Diebold and Mariano (1995)")
DENSITY = partial(Finding, "usefulness.density", source="Diebold and Mariano (1995)")

#: A difference is clear if the one-sided t interval over rows of this level is above zero.
CLEAR = 0.01
#: Level at which a fit must be better than the trivial reference; a miss is only a warning.
BETTER = 0.05
#: A reference has something to learn for sure if it gains this many standard errors on the training
#: rows, in cross-validation.
LEARNABLE = 4.0
#: Fewer held-out rows cannot tell a useful fit from a useless one.
MIN_ROWS = 10
#: Threshold of the advantage over the trivial reference.
NO_SKILL = 0.0
#: Share of the error that a reference removes and the fit does not: warning and failure.
LOST_WARN, LOST_FAIL = 0.05, 0.20
#: Differences below this share of the trivial error do not matter (a small effect, Cohen 1988).
SMALL = 0.02
#: Lost log density in nats per row. A Gaussian forecast whose sd is r times the right one loses
#: log r + (1 / r^2 - 1) / 2: with r = 0.84 and 0.65, for which intervals of 95 % cover 90 % and
#: 80 %, this is 0.034 and 0.25.
NATS_WARN, NATS_FAIL = 0.034, 0.25

#: What the error of a task is.
ERRORS = {
    "regression": "squared error of the mean",
    "counts": "deviance of the mean count",
    "classification": "Brier score of the class shares",
}


def usefulness_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare errors and densities of held-out rows with those of the references."""
    errors, densities = (_by_reference(tree, name) for name in ("error", "log_density"))
    findings = []
    if "fit" in errors and "trivial" in errors:
        findings.append(_skill(errors, _gains(tree), task_of(tree)))
    if "fit" in densities and "trivial" in densities:
        findings.append(_density(densities, errors if task_of(tree) == "regression" else {}))
    return findings


def lower_bound(values: Array, p_value: float = CLEAR) -> float:
    """Return the lower end of a one-sided t interval of the mean of independent values."""
    count = len(values)
    if count < 3:
        return -np.inf
    error = float(np.std(values, ddof=1)) / np.sqrt(count)
    return float(np.mean(values) - stats.t.isf(p_value, count - 1) * error)


def _by_reference(tree: xarray.DataTree, name: str) -> dict[str, Array]:
    array = variable(tree, "references", name)
    if array is None or set(array.dims) != {"reference", "row"} or "reference" not in array.coords:
        return {}
    values = array.transpose("reference", "row").to_numpy().astype(np.float64)
    return {str(k): v for k, v in zip(array["reference"].to_numpy(), values, strict=True)}


def _gains(tree: xarray.DataTree) -> dict[str, float]:
    """Return the gains of references on the training rows, in standard errors."""
    array = variable(tree, "references", "training_gain")
    if array is None or "reference" not in array.coords:
        return {}
    names = map(str, array["reference"].to_numpy())
    return dict(zip(names, array.to_numpy().astype(float).tolist(), strict=True))


def _skill(errors: dict[str, Array], gains: dict[str, float], task: str) -> Finding:
    fit, trivial = errors["fit"], errors["trivial"]
    rivals = {name: error for name, error in errors.items() if name not in ("fit", "trivial")}
    if not np.isfinite(fit).all():
        message = "Some predictions of held-out rows are not finite."
        return SKILL("fail", None, None, message, "Look for network outputs that overflow.")
    removed = {name: 1 - float(e.mean() / trivial.mean()) for name, e in errors.items()}
    others = "; ".join(f"the {k} reference removes {format_share(removed[k])}" for k in rivals)
    message = (
        f"The predictions remove {format_share(removed['fit'])} of the {ERRORS[task]} on "
        f"{len(fit)} held-out rows{f'; {others}' if others else ''}."
    )
    worse = lower_bound(fit - trivial) / float(trivial.mean())
    if worse > SMALL:
        advice = (
            "Train until the loss is flat, then scale inputs and targets, or widen the prior: "
            "predicting the same for every row is better."
        )
        return SKILL("fail", worse, SMALL, message, advice)
    lost = {k: _lost(fit, rival, trivial, CLEAR / len(rivals)) for k, rival in rivals.items()}
    worst = max(lost, key=lambda name: lost[name], default="")
    value = lost.get(worst, 0.0)
    level = level_of(value, LOST_WARN, LOST_FAIL)
    if level != "ok":
        message += (
            f" The fit lacks at least {format_share(value)} of what the {worst} reference gains."
        )
        advice = (
            "Train until the loss is flat, then widen the prior: a linear model predicts better."
            if lost.get("linear", 0.0) > LOST_WARN
            else "Use a larger network, or train longer: the inputs tell more than this fit uses."
        )
        return SKILL(level, value, LOST_FAIL if level == "fail" else LOST_WARN, message, advice)
    if len(fit) < MIN_ROWS:
        advice = "Hold out more rows for testing (test_fraction), or collect more rows."
        reason = f"{len(fit)} held-out rows cannot tell a useful fit from a useless one."
        return unchecked("usefulness.skill", reason, advice)
    # A tiny share of the right prediction is clearly better than nothing, and still useless.
    better = min(
        lower_bound(trivial - fit, BETTER), (removed["fit"] - SMALL) * float(trivial.mean())
    )
    if better > 0 or _follows(fit, trivial, rivals, gains):
        return SKILL("ok", value, LOST_WARN, message)
    message += " This is no better than predicting the same for every row."
    most = max((gains.get(name, 0.0) for name in rivals), default=0.0)
    advice = (
        "Train longer or widen the prior: the references do find something to learn."
        if most > stats.norm.isf(CLEAR)
        else "Look for better inputs or collect more rows: the references do not predict the "
        "target either."
    )
    level = "fail" if most > LEARNABLE else "warn"
    return SKILL(level, better, NO_SKILL, message, advice)


def _lost(fit: Array, rival: Array, trivial: Array, p_value: float) -> float:
    """Return a lower bound for the share of a rival's gain that the fit lacks.

    The rival's gain is its advantage over the trivial reference. The bound is that of Fieller: the
    largest share s for which fit - rival - s (trivial - rival) is clearly positive. Differences
    that do not matter have at most the share `LOST_WARN`.
    """
    if lower_bound(fit - rival, p_value) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        clear = lower_bound(fit - rival - middle * (trivial - rival), p_value) > 0
        low, high = (middle, high) if clear else (low, middle)
    matters = lower_bound(fit - rival - SMALL * trivial, p_value) > 0
    return low if matters else min(low, LOST_WARN)


def _follows(fit: Array, trivial: Array, rivals: dict[str, Array], gains: dict[str, float]) -> bool:
    """Return whether the fit does as a rival that gains clearly on the training rows.

    Few held-out rows may not show a small gain that cross-validation on more rows shows. The errors
    of the fit must be nearer to those of the rival than to those of the trivial reference.
    """
    return any(
        gains.get(name, 0.0) > stats.norm.isf(CLEAR)
        and ((fit - rival) ** 2).sum() < ((fit - trivial) ** 2).sum()
        and lower_bound(fit - rival - SMALL * trivial, BETTER) <= 0
        for name, rival in rivals.items()
    )


def _density(densities: dict[str, Array], errors: dict[str, Array]) -> Finding:
    fit = densities["fit"]
    rivals = {name: density for name, density in densities.items() if name != "fit"}
    words = ", ".join(f"{name} {format_number(float(d.mean()))}" for name, d in rivals.items())
    message = (
        f"The log predictive density is {format_number(float(fit.mean()))} nats per held-out row "
        f"(references: {words})."
    )
    advice = "Look at the coverage of the intervals: the predicted spread is wrong."
    if not np.isfinite(fit).all():
        return DENSITY("fail", float(fit.mean()), None, message, advice)
    gaps = {
        name: lower_bound(rival - fit - _explained(errors, name), CLEAR / len(rivals))
        for name, rival in rivals.items()
    }
    worst = max(gaps, key=lambda name: gaps[name])
    value = gaps[worst]
    level = level_of(value, NATS_WARN, NATS_FAIL)
    limit = NATS_FAIL if level == "fail" else NATS_WARN
    if gaps["trivial"] > NATS_WARN:
        # Worse than a density that ignores the inputs is a failure by any margin that matters.
        level, limit, worst = "fail", NATS_WARN, "trivial"
        value = gaps["trivial"]
    if level != "ok":
        message += f" It is at least {format_number(value)} nats below the {worst} reference"
        message += ", larger errors apart." if errors else "."
    return DENSITY(level, value, limit, message, advice)


def _explained(errors: dict[str, Array], name: str) -> Array:
    """Return the density that a fit loses by errors that are larger than those of a reference.

    That is a matter of skill, not of the predicted spread. With squared errors e of mean m and
    Gaussian densities of the right spread, a row has the density -log(m) / 2 - e / (2 m).
    """
    if "fit" not in errors or name not in errors:
        return np.zeros(())
    own, other = errors["fit"], errors[name]
    small = np.finfo(float).tiny
    mean, rival = max(float(own.mean()), small), max(float(other.mean()), small)
    if mean <= rival:
        return np.zeros(())
    return np.asarray(0.5 * (np.log(mean / rival) + own / mean - other / rival))
