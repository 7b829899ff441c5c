"""Whether fits from several starts end at the same ELBO, and predict the same."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number, level_of
from zoo.diagnostics.loss_curves import SLOPE_Z
from zoo.diagnostics.reading import Array, variable
from zoo.diagnostics.truth_distance import SHIFT_WARN
from zoo.infer.svi.tolerance import tolerance_in_nats

RESTARTS = partial(Finding, "optimisation.restarts", source="Dhaka et al. (2020)")
PREDICTIONS = partial(
    Finding,
    "optimisation.restart_predictions",
    source="Yao, Vehtari and Gelman (2022); threshold from interval coverage",
)


def stored_restart_findings(tree: xarray.DataTree, rows: int) -> list[Finding]:
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
