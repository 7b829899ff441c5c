"""The page of one run: what was fitted, how well it predicts, what was pruned, how it trained."""

from collections.abc import Mapping
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

#: Points of the loss curve on the page.
CURVE_POINTS = 300
WIDTH, HEIGHT = 720, 220

#: How the numbers of metrics.json are called on the page.
NAMES = {
    "accuracy": "accuracy",
    "nll": "negative log-likelihood per row",
    "ece": "expected calibration error",
    "brier": "Brier score",
    "rmse": "root mean squared error",
    "crps": "continuous ranked probability score",
}


def render_page(
    *,
    config: Mapping[str, Any],
    priors: Mapping[str, str],
    metrics: Mapping[str, float],
    groups: Mapping[str, Any],
    losses: NDArray[Any],
    summary: str,
    reference: str,
) -> str:
    """Return the HTML page of a run. All text is escaped; the page loads nothing from elsewhere.

    Parameters
    ----------
    config
        The run's configuration.
    priors
        The prior of every slot, as text.
    metrics
        The numbers of ``metrics.json``.
    groups
        The compression view as plain types.
    losses
        Loss of every step.
    summary, reference
        The method in one sentence, and where it comes from.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.report"), autoescape=True, trim_blocks=True
    )
    return environment.get_template("run.html").render(
        config=config,
        priors=priors,
        scores=_score_table(metrics),
        metrics=metrics,
        groups=groups,
        curve=_curve(losses),
        summary=summary,
        reference=reference,
        width=WIDTH,
        height=HEIGHT,
    )


def _score_table(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Arrange scores with one row per score and one column per part of the data."""
    parts = [
        part
        for part in ("train", "test", "test.pruned")
        if any(key.rpartition(".")[0] == part for key in metrics)
    ]
    rows = {
        title: [metrics.get(f"{part}.{name}") for part in parts]
        for name, title in NAMES.items()
        if any(f"{part}.{name}" in metrics for part in parts)
    }
    return {"parts": parts, "rows": rows}


def _curve(losses: NDArray[Any]) -> dict[str, Any] | None:
    """Return the ELBO over steps as a polyline; the scale cuts off the first, steep part."""
    if len(losses) < 2:
        return None
    pieces = np.array_split(-losses.astype(float), min(CURVE_POINTS, len(losses)))
    values = np.array([piece.mean() for piece in pieces])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = np.quantile(finite, 0.05), finite.max()
    span = max(high - low, 1e-12)
    heights = HEIGHT - np.clip((values - low) / span, 0, 1) * HEIGHT
    columns = np.linspace(0, WIDTH, len(values))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(columns, heights, strict=True))
    return {"points": points, "low": float(low), "high": float(high), "steps": len(losses)}
