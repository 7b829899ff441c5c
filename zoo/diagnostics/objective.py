r"""Whether the loss that was minimised is minus the ELBO of the posterior.

If the divergence has a wrong weight, the loss curve looks normal, but the posterior is wrong. Two
checks detect this from draws and densities alone. The first compares the final loss with minus the
average of :math:`\log p(y, w) - \log q(w)`. The second scales all standard deviations, or all
means, of the posterior (`zoo.infer.stationarity`), which cannot raise the ELBO at its maximum.
"""

from functools import partial

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number, level_of, unchecked
from zoo.diagnostics.loss_curves import FAIL_FACTOR, MIN_STEPS, SLOPE_Z, block_means
from zoo.diagnostics.reading import Array, variable

OBJECTIVE = partial(
    Finding,
    "optimisation.objective",
    source="definition of the ELBO; Geweke (2004) for tests of this kind",
)
STATIONARY = partial(
    Finding,
    "optimisation.stationary",
    source="first-order optimality of the ELBO; Yao et al. (2018)",
)

#: Fraction of the steps, at the end, whose average loss is compared with the ELBO.
END = 0.1
#: A difference of loss and ELBO by more than this many tolerances is a failure; nothing but a wrong
#: objective makes it that large.
OBJECTIVE_FAIL = 3.0
#: An increase of the ELBO below this many standard errors is noise, over eight moves.
GAIN_Z = 4.0
#: Names of the moves of the posterior in messages.
MOVE_WORDS = {"scale": "all sds", "mean": "all means"}


def objective_findings(tree: xarray.DataTree, losses: Array, tolerance: float) -> list[Finding]:
    """Check whether the final loss equals minus the ELBO of the posterior."""
    estimate = _elbo_of_densities(tree)
    if estimate is None or not tree.attrs.get("loss_is_elbo", 0) or len(losses) > 1:
        return []
    end = losses[0, -max(1, round(END * losses.shape[1])) :]
    if losses.shape[1] < MIN_STEPS or not np.isfinite([*end, *estimate]).all():
        reason = f"it needs {MIN_STEPS} steps, and losses and densities that are finite."
        return [unchecked("optimisation.objective", reason, "Train longer.")]
    blocks = block_means(end)
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


def stationarity_findings(tree: xarray.DataTree, tolerance: float) -> list[Finding]:
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
