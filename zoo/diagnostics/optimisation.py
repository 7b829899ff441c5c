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

If the divergence has a wrong weight, the loss curve looks normal, but the posterior is wrong. Two
checks detect this from draws and densities alone. The first compares the final loss with minus the
average of :math:`\log p(y, w) - \log q(w)`. The second scales all standard deviations, or all
means, of the posterior (`zoo.infer.stationarity`), which cannot raise the ELBO at its maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import xarray
from scipy import stats

from zoo.diagnostics.finding import LEVELS, Finding, format_number, level_of, unchecked
from zoo.diagnostics.reading import Array, training_rows, variable
from zoo.diagnostics.truth_distance import SHIFT_FAIL, SHIFT_WARN
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
OBJECTIVE = partial(
    Finding,
    "optimisation.objective",
    source="definition of the ELBO; Geweke (2004) for tests of this kind",
)
GRADIENTS = partial(Finding, "optimisation.gradients", source="Pascanu, Mikolov and Bengio (2013)")
RESTARTS = partial(Finding, "optimisation.restarts", source="Dhaka et al. (2020)")
PREDICTIONS = partial(
    Finding,
    "optimisation.restart_predictions",
    source="Yao, Vehtari and Gelman (2022); threshold from interval coverage",
)
STATIONARY = partial(
    Finding,
    "optimisation.stationary",
    source="first-order optimality of the ELBO; Yao et al. (2018)",
)

#: Fraction of the steps, at the end, in which convergence is checked.
WINDOW = 0.25
#: Number of blocks into which the window is averaged.
BLOCKS = 20
#: Fraction of the steps, at the end, whose average loss is compared with the ELBO.
END = 0.1
#: Smallest number of steps for which a slope is estimated.
MIN_STEPS = 2 * BLOCKS
#: Residuals of block averages are clipped at this many robust standard deviations.
OUTLIER = 3.0
#: A change over the window below this many standard errors is noise. Exceeded by 2 of 1000 flat
#: curves whose noise is autocorrelated (0.7) and heavy-tailed (Student t, 3 degrees of freedom).
SLOPE_Z = 4.0
#: A change of the loss by more than this many tolerances is a failure.
FAIL_FACTOR = 10.0
#: The same for the difference of loss and ELBO, which nothing but a wrong objective makes large.
OBJECTIVE_FAIL = 3.0
#: An increase of the ELBO below this many standard errors is noise, over eight moves.
GAIN_Z = 4.0
#: Names of the moves of the posterior in messages.
MOVE_WORDS = {"scale": "all sds", "mean": "all means"}
#: Largest growth of the gradient norm from the first to the last quarter.
GRADIENT_GROWTH = 10.0


def optimisation_findings(tree: xarray.DataTree) -> list[Finding]:
    """Check the group ``optimization``: finite losses, convergence, objective, restarts."""
    losses, norms = _curve(tree, "loss"), _curve(tree, "gradient_norm")
    rows = training_rows(tree)
    tolerance = tolerance_in_nats(rows)
    findings = []
    if losses is not None:
        findings += [_finite_losses(losses), _convergence(tree, losses, tolerance)]
        if kind_of(tree).family == "network" or "sds" in tree["optimization"].attrs:
            findings.append(_outputs_settled(tree))
        findings += _objective(tree, losses, tolerance)
    if losses is not None and len(losses) > 1:
        ends = losses[:, -max(1, losses.shape[1] // 10) :]
        findings += restart_findings(-ends.mean(1), ends.std(1) / np.sqrt(ends.shape[1]), rows)
    findings += _stored_restarts(tree, rows)
    findings += _stationarity(tree, tolerance)
    if norms is not None:
        findings.append(_gradient_norms(norms))
    return findings


def _curve(tree: xarray.DataTree, name: str) -> Array | None:
    """Return a curve as ``(chain, step)``."""
    array = variable(tree, "optimization", name)
    steps = [] if array is None else [d for d in ("step", "gradient_step") if d in array.dims]
    if array is None or not steps:
        return None
    values = array.transpose(..., steps[0]).to_numpy().astype(np.float64)
    return values.reshape(-1, values.shape[-1])


def _window(curves: Array) -> Array:
    return curves[:, -max(1, round(WINDOW * curves.shape[1])) :]


def _finite_losses(losses: Array) -> Finding:
    bad = ~np.isfinite(losses)
    count, late = int(bad.sum()), bool(_window(bad).any())
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
    window = _window(losses[None])[0]
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


def change_over_window(window: Array) -> tuple[float, float]:
    """Return the change of a noisy curve over the window and its standard error.

    The slope of the block averages is estimated by Sen's method. Its error is that of a
    least-squares slope with clipped residuals.
    """
    blocks = _block_means(window)
    time = np.linspace(0.0, 1.0, len(blocks))
    slope = float(stats.theilslopes(blocks, time).slope)
    residuals = blocks - slope * time
    residuals -= np.median(residuals)
    limit = OUTLIER * float(stats.median_abs_deviation(residuals, scale="normal"))
    scale = float(residuals.clip(-limit, limit).std())
    # Slope and intercept use up two degrees of freedom.
    scale *= np.sqrt(len(blocks) / max(1, len(blocks) - 2))
    return slope, float(scale / np.sqrt(((time - time.mean()) ** 2).sum()))


def _block_means(values: Array) -> Array:
    return np.array([part.mean() for part in np.array_split(values, min(BLOCKS, len(values)))])


def _objective(tree: xarray.DataTree, losses: Array, tolerance: float) -> list[Finding]:
    """Check whether the final loss equals minus the ELBO of the posterior."""
    estimate = _elbo_of_densities(tree)
    if estimate is None or not tree.attrs.get("loss_is_elbo", 0) or len(losses) > 1:
        return []
    end = losses[0, -max(1, round(END * losses.shape[1])) :]
    if losses.shape[1] < MIN_STEPS or not np.isfinite([*end, *estimate]).all():
        reason = f"it needs {MIN_STEPS} steps, and losses and densities that are finite."
        return [unchecked("optimisation.objective", reason, "Train longer.")]
    blocks = _block_means(end)
    loss, loss_error = float(blocks.mean()), float(blocks.std(ddof=1) / np.sqrt(len(blocks)))
    record = tree["optimization"].attrs
    if np.isfinite(record.get("loss", np.nan)):  # of the result, which is no iterate
        loss, loss_error = float(record["loss"]), float(record["loss_error"])
    difference = float(loss + estimate[0])
    error = float(np.hypot(loss_error, estimate[1]))
    level = level_of(abs(difference) - SLOPE_Z * error, tolerance, OBJECTIVE_FAIL * tolerance)
    message = (
        f"The final loss is {format_number(abs(difference))} ± {format_number(error)} nats "
        f"{'above' if difference > 0 else 'below'} minus the ELBO computed from the densities of "
        f"the posterior draws (tolerance: {format_number(tolerance)})."
    )
    advice = (
        "Check the weight of the KL (kl_warmup) and the closed forms of divergences: the objective "
        "was not the ELBO."
    )
    return [OBJECTIVE(level, difference, tolerance, message, advice)]


def _elbo_of_densities(tree: xarray.DataTree) -> tuple[float, float] | None:
    """Return the ELBO from densities of posterior draws, and its standard error.

    A fit stores it for all draws and, if there are many rows, an unbiased sample of them.
    """
    if {"density_elbo", "density_elbo_error"} <= set(tree.attrs):
        return float(tree.attrs["density_elbo"]), float(tree.attrs["density_elbo_error"])
    joint, posterior = (variable(tree, "sample_stats", name) for name in ("lp", "log_q"))
    if joint is None or posterior is None:
        return None
    elbos = (joint - posterior).to_numpy().astype(np.float64).ravel()
    return float(elbos.mean()), float(elbos.std() / np.sqrt(elbos.size))


def _stored_restarts(tree: xarray.DataTree, rows: int) -> list[Finding]:
    """Check the stored restarts; the first is the fit itself."""
    elbos = variable(tree, "optimization", "restart_elbo")
    errors = variable(tree, "optimization", "restart_elbo_error")
    if elbos is None or errors is None:
        return []
    found = elbos.to_numpy().astype(np.float64)
    findings = restart_findings(found, errors.to_numpy().astype(np.float64), rows)
    if findings and findings[0].level != "ok" and "restart" in elbos.coords:
        numbers = elbos["restart"].to_numpy()
        best = int(numbers[np.nanargmax(found)])
        advice = f"Use the best restart instead (--start {best}), and run more restarts."
        if best == int(numbers[0]):
            advice = "Run more restarts, or train longer; this fit is the best of them."
        findings = [replace(findings[0], advice=advice)]
    return findings + _restart_predictions(tree)


def restart_distances(tree: xarray.DataTree) -> Array | None:
    r"""Return the distances of the outputs of restarts to those of the fit, in posterior sds.

    For each restart this is the root mean square over rows and outputs of
    :math:`(m_k - m_0) / \sqrt{(s_0^2 + s_k^2) / 2 + r^2}`, with :math:`r` the resolution of the
    outputs. The Monte Carlo error of :math:`S` draws, at most :math:`2 / S`, is subtracted from its
    square. Restarts that diverged have NaN.
    """
    means = variable(tree, "optimization", "restart_outputs_mean")
    sds = variable(tree, "optimization", "restart_outputs_sd")
    outputs = variable(tree, "functions", "f")
    if means is None or sds is None or outputs is None or len(means) < 2:
        return None
    draws = outputs.sizes.get("chain", 1) * outputs.sizes["draw"]
    m, s = (array.to_numpy().reshape(len(means), -1).astype(np.float64) for array in (means, sds))
    own = (s[:1] ** 2 + s[1:] ** 2) / 2
    pooled = own + float(outputs.attrs.get("resolution", 0.0)) ** 2
    moving = (pooled > 0).any(0)  # a constant output has no scale
    if not moving.any():
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = (m[1:, moving] - m[:1, moving]) ** 2 / pooled[:, moving]
        noise = 2 / draws * (own[:, moving] / pooled[:, moving]).mean(1)
        distances: Array = np.sqrt(np.maximum(squares.mean(1) - noise, 0.0))
    return distances


def _restart_predictions(tree: xarray.DataTree) -> list[Finding]:
    distances = restart_distances(tree)
    if distances is None or not np.isfinite(distances).any():
        return []
    largest = float(np.nanmax(distances))
    message = (
        f"The network outputs of {np.isfinite(distances).sum()} restarts differ from this fit by "
        f"up to {format_number(largest)} posterior sds (root mean square over rows)."
    )
    advice = (
        "Average the predictions of several restarts: the posterior has several modes, and this "
        "guide covers only one."
    )
    return [PREDICTIONS(level_of(largest, SHIFT_WARN), largest, SHIFT_WARN, message, advice)]


def _stationarity(tree: xarray.DataTree, tolerance: float) -> list[Finding]:
    """Check whether scaling all sds or all means of the posterior raises the ELBO."""
    gains = variable(tree, "optimization", "elbo_gain")
    errors = variable(tree, "optimization", "elbo_gain_error")
    if gains is None or errors is None or set(gains.dims) != {"move", "factor"}:
        return []
    gains, errors = (array.transpose("move", "factor") for array in (gains, errors))
    values, noise = (array.to_numpy().astype(np.float64) for array in (gains, errors))
    known = np.isfinite(values) & np.isfinite(noise)
    if not known.any():
        return []
    sure = np.where(known, values - GAIN_Z * noise, -np.inf)
    i, j = np.unravel_index(int(sure.argmax()), sure.shape)
    gain = float(values[i, j])
    level = level_of(float(sure[i, j]), tolerance, FAIL_FACTOR * tolerance)
    factor = float(gains["factor"].to_numpy()[j])
    move = str(gains["move"].to_numpy()[i])
    what = MOVE_WORDS.get(move, move)
    if level == "ok":
        message = (
            "Scaling all sds or all means of the posterior raises the ELBO by at most "
            f"{format_number(tolerance)} nats."
        )
        return [STATIONARY(level, max(gain, 0.0), tolerance, message)]
    message = (
        f"The ELBO increases by {format_number(gain)} ± {format_number(float(noise[i, j]))} nats "
        f"when {what} of the posterior are multiplied by {format_number(factor)} (tolerance: "
        f"{format_number(tolerance)}), so the fit is not at its maximum."
    )
    advice = (
        "Train longer. If this does not help, check the weight of the KL (kl_warmup) and whether "
        "the guide couples means and sds."
    )
    return [STATIONARY(level, gain, tolerance, message, advice)]


def restart_findings(
    elbos: Sequence[float] | Array, errors: Sequence[float] | Array, rows: int
) -> list[Finding]:
    """Check whether several fits of one model from different initialisations agree.

    Parameters
    ----------
    elbos, errors
        Final ELBO of every restart, in nats, and its standard error.
    rows
        Number of training rows.
    """
    elbos, errors = np.asarray(elbos, float), np.asarray(errors, float)
    finite = np.isfinite(elbos) & np.isfinite(errors)
    if finite.sum() < 2:
        return []
    tolerance, lost = tolerance_in_nats(rows), int((~finite).sum())
    elbos, errors = elbos[finite], errors[finite]
    best, worst = int(elbos.argmax()), int(elbos.argmin())
    spread = float(elbos[best] - elbos[worst])
    error = float(np.hypot(errors[best], errors[worst]))
    agree = spread - SLOPE_Z * error <= tolerance and not lost
    diverged = f"; {lost} more ended with an ELBO that is not finite" if lost else ""
    message = (
        f"The ELBOs of {len(elbos)} fits from different initialisations differ by up to "
        f"{format_number(spread)} ± {format_number(error)} nats (tolerance: "
        f"{format_number(tolerance)}){diverged}."
    )
    advice = "Keep the restart with the highest ELBO, and run more restarts."
    return [RESTARTS("ok" if agree else "warn", spread, tolerance, message, advice)]


def _gradient_norms(norms: Array) -> Finding:
    finite = np.isfinite(norms)
    bad = int((~finite).sum())
    if bad:
        message = f"{bad} of {norms.size} gradient norms are not finite."
        advice = "Lower the learning rate, or look for a scale that collapses to zero."
        return GRADIENTS("warn" if _window(finite).all() else "fail", bad, 0, message, advice)
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
