r"""Convergence of the optimiser: loss curve, objective, gradients, restarts.

The loss is minus the ELBO in nats, so if the loss still decreases by :math:`\Delta`, the
divergence :math:`KL(q\,\|\,p)` decreases by :math:`\Delta` as well. A change of the loss is
reported only if it is significant *and* large enough to matter:

* The last quarter of the steps is averaged in blocks, which removes the autocorrelation caused by
  mini-batches and epochs. A line is fitted to the blocks by the median of pairwise slopes
  (Sen 1968), which is robust to outliers.
* The change over the window is significant above `SLOPE_Z` standard errors.
* It matters above `tolerance_in_nats`: 1 nat, or 0.01 nats per training row.

A run that ended by itself has a record of its convergence (`zoo.infer.svi.convergence`), with an
estimate of the gain that is left and of the change of the outputs; the tolerances are those of the
rule that stopped it. The slope decides for runs of a given number of steps.

Kucukelbir et al. (2017) stop at a relative change of 0.01 per check. A change relative to the loss
depends on constants of the likelihood, so the tolerance here is per row. A learning rate that
decays to zero flattens any curve, so this check can show that training stopped too early, but not
that it reached the optimum. Restarts and the distance to the truth test the latter.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray

from zoo.diagnostics.finding import LEVELS, Finding, format_number, level_of, unchecked
from zoo.diagnostics.loss_curves import (
    BLOCKS,
    FAIL_FACTOR,
    MIN_STEPS,
    SLOPE_Z,
    WINDOW,
    change_over_window,
    curve_of,
    last_quarter,
)
from zoo.diagnostics.objective import objective_findings, stationarity_findings
from zoo.diagnostics.reading import Array, training_rows
from zoo.diagnostics.restarts import restart_findings, stored_restart_findings
from zoo.diagnostics.truth_distance import SHIFT_FAIL
from zoo.diagnostics.uses import kind_of
from zoo.infer.svi.tolerance import OUTPUT_SDS, tolerance_in_nats

FINITE = partial(Finding, "optimisation.finite")
CONVERGED = partial(
    Finding, "optimisation.converged", source="Kucukelbir et al. (2017); slope by Sen (1968)"
)
RULE = partial(
    Finding, "optimisation.converged", source="Welandawe et al. (2024); Dhaka et al. (2020)"
)
SETTLED = partial(
    Finding, "optimisation.outputs_settled", source="coverage of a shifted 95 % interval"
)
GRADIENTS = partial(Finding, "optimisation.gradients", source="Pascanu, Mikolov and Bengio (2013)")

#: Largest growth of the gradient norm from the first to the last quarter.
GRADIENT_GROWTH = 10.0


def optimisation_findings(tree: xarray.DataTree) -> list[Finding]:
    """Check the group ``optimization``: finite losses, convergence, objective, restarts."""
    losses, norms = curve_of(tree, "loss"), curve_of(tree, "gradient_norm")
    rows = training_rows(tree)
    tolerance = tolerance_in_nats(rows)
    findings = []
    if losses is not None:
        findings += [_finite_losses(losses), _convergence(tree, losses, tolerance)]
        if kind_of(tree).family == "network" or "sds" in tree["optimization"].attrs:
            findings.append(_outputs_settled(tree))
        findings += objective_findings(tree, losses, tolerance)
    if losses is not None and len(losses) > 1:
        ends = losses[:, -max(1, losses.shape[1] // 10) :]
        findings += restart_findings(-ends.mean(1), ends.std(1) / np.sqrt(ends.shape[1]), rows)
    findings += stored_restart_findings(tree, rows)
    findings += stationarity_findings(tree, tolerance)
    if norms is not None:
        findings.append(_gradient_norms(norms))
    return findings


def _finite_losses(losses: Array) -> Finding:
    bad = ~np.isfinite(losses)
    count, late = int(bad.sum()), bool(last_quarter(bad).any())
    if not count:
        return FINITE("ok", 0, 0, f"All {losses.shape[1]} losses are finite.")
    where = "some of them in the last quarter" if late else "none of them in the last quarter"
    message = f"{count} of {losses.size} losses are not finite, {where}."
    advice = "Lower the learning rate, use smaller initial scales, or standardise the inputs."
    return FINITE("fail" if late else "warn", count, 0, message, advice)


def _convergence(tree: xarray.DataTree, losses: Array, tolerance: float) -> Finding:
    """Return the finding of the run's own record, or of the chain that changes most."""
    record: Any = tree["optimization"].attrs
    if record.get("reason") in ("converged", "budget"):
        return _convergence_by_record(record)
    results = [_convergence_of_one(chain, tolerance) for chain in losses]
    return max(results, key=lambda found: (LEVELS.index(found.level), abs(found.value or 0.0)))


def _convergence_by_record(record: Mapping[Any, Any]) -> Finding:
    """Return the finding of a run that ended by itself, or at the end of its budget."""
    tolerance, left = float(record["tolerance"]), float(record["remaining"])
    error, steps = float(record["remaining_error"]), int(record["steps"])
    known = np.isfinite(left)
    estimate = (
        f"More training would raise the ELBO by about {format_number(left)} nats (tolerance: "
        f"{format_number(tolerance)}), extrapolated from averages of iterates"
    )
    if np.isfinite(error):
        estimate += f" whose ELBOs differ with a standard error of {format_number(error)} nats"
    if record["reason"] == "converged":
        message = f"Training converged after {steps} steps. {estimate}."
        return RULE("ok", left, tolerance, message)
    message = f"The budget of {steps} steps ran out before convergence. "
    message += f"{estimate}." if known else "How much more training would gain is not known yet."
    level = level_of(left, tolerance, FAIL_FACTOR * tolerance) if known else "fail"
    advice = "Raise max_steps or max_seconds."
    # Within the tolerance, but not seen long enough to be sure.
    level = "warn" if level == "ok" else level
    return RULE(level, left if known else None, tolerance, message, advice)


def _outputs_settled(tree: xarray.DataTree) -> Finding:
    """Check how much the outputs still changed at the end, in posterior sds."""
    record = tree["optimization"].attrs
    change = float(record.get("sds", np.nan))
    if not np.isfinite(change):
        reason = "this fit has no outputs with a spread from two late parts of the training."
        advice = "Fit again, without num_steps or with at least 80 steps."
        return unchecked("optimisation.outputs_settled", reason, advice)
    tolerance = float(record.get("sds_tolerance", OUTPUT_SDS))
    what = "changed by {} posterior sds in the last part of the run"
    if record.get("reason") == "converged":
        what = "would change by {} posterior sds with more training"
    message = (
        f"Outputs at fixed rows {what.format(format_number(change))} (root mean square; tolerance: "
        f"{format_number(tolerance)})."
    )
    advice = "Train longer: leave num_steps out, or raise num_steps or max_steps."
    return SETTLED(level_of(change, tolerance, SHIFT_FAIL), change, tolerance, message, advice)


def _convergence_of_one(losses: Array, tolerance: float) -> Finding:
    steps = len(losses)
    window = last_quarter(losses[None])[0]
    window = window[np.isfinite(window)]
    if steps < MIN_STEPS:
        return _too_short(losses, 0.1 * tolerance)
    if len(window) < BLOCKS // 2:
        message = "The last quarter of the loss has too few finite values to check convergence."
        advice = "Fix the cause of the non-finite losses first."
        return CONVERGED("fail", None, tolerance, message, advice)
    change, error = change_over_window(window)
    real = abs(change) > SLOPE_Z * error
    level = level_of(abs(change) if real else 0.0, tolerance, FAIL_FACTOR * tolerance)
    direction = "decreased" if change < 0 else "increased"
    message = (
        f"The loss {direction} by {format_number(abs(change))} ± {format_number(error)} nats over "
        f"the last {len(window)} of {steps} steps (tolerance: {format_number(tolerance)})."
    )
    advice = "Lower the learning rate, because the loss increases at the end."
    if change < 0:
        advice = (
            "Leave num_steps out, so that training runs until convergence, or raise it; raise the "
            "learning rate if the loss curve is smooth."
        )
    return CONVERGED(level, change, tolerance, message, advice)


def _too_short(losses: Array, tolerance: float) -> Finding:
    """Check a short run: it has converged if the end of the loss is flat."""
    steps = len(losses)
    end = losses[-max(3, round(WINDOW * steps)) :]
    spread = float(np.ptp(end)) if np.isfinite(end).all() else float("inf")
    if steps > 3 and spread <= tolerance:
        message = f"The loss changed by {format_number(spread)} nats in the last {len(end)} steps."
        return CONVERGED("ok", spread, tolerance, message)
    message = (
        f"Only {steps} steps were run, and the loss still changed by {format_number(spread)} nats "
        f"in the last {len(end)}."
    )
    advice = f"Leave num_steps out, or raise it to at least {MIN_STEPS}."
    return CONVERGED("fail", spread, tolerance, message, advice)


def _gradient_norms(norms: Array) -> Finding:
    finite = np.isfinite(norms)
    bad = int((~finite).sum())
    if bad:
        message = f"{bad} of {norms.size} gradient norms are not finite."
        advice = "Lower the learning rate, or look for a scale that collapses to zero."
        return GRADIENTS("warn" if last_quarter(finite).all() else "fail", bad, 0, message, advice)
    quarter = max(1, norms.shape[1] // 4)
    first, last = (float(np.median(part)) for part in (norms[:, :quarter], norms[:, -quarter:]))
    growth = last / first if first > 0 else (1.0 if last == 0 else float("inf"))
    message = (
        f"The median gradient norm is {format_number(first)} in the first quarter of the steps and "
        f"{format_number(last)} in the last quarter."
    )
    advice = "Lower the learning rate or clip gradients."
    level = level_of(growth, GRADIENT_GROWTH)
    return GRADIENTS(level, growth, GRADIENT_GROWTH, message, advice)
