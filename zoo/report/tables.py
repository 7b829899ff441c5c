"""Tables of the report: columns with a kind and rows of values; the template formats them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import xarray

from zoo.diagnostics import Finding
from zoo.diagnostics.finding import LEVELS
from zoo.diagnostics.optimisation import restart_distances
from zoo.diagnostics.reading import variable
from zoo.diagnostics.robustness import ATTACKS, DENSITY, robustness_curve, robustness_curves
from zoo.report.figures.forest import Row

Kind = Literal["text", "code", "number", "level"]

#: Names of the metrics of metrics.json on the page.
NAMES = {
    "accuracy": "accuracy",
    "nll": "negative log-likelihood per row",
    "ece": "expected calibration error",
    "brier": "Brier score",
    "rmse": "root mean squared error",
    "crps": "continuous ranked probability score",
}
PARTS = {
    "train": "training rows",
    "test": "test rows",
    "test.pruned": "test rows, pruned",
    "test.mean": "test rows, posterior means",
    "test.quantized": "test rows, quantized",
}
TOTALS = {
    "log_evidence": "log evidence (nats)",
    "elbo": "ELBO (nats)",
    "kl": "KL between posterior and prior (nats)",
    "weights_left_percent": "weights left after pruning (%)",
    "nonzero_percent": "nonzero quantized weights (%)",
    "bits_per_weight": "bits per quantized weight",
    "steps": "steps",
    "seconds": "seconds of training",
}


@dataclass(frozen=True)
class Table:
    """A sortable table."""

    caption: str
    columns: Sequence[str]
    kinds: Sequence[Kind]
    rows: Sequence[Sequence[Any]]


def score_table(metrics: Mapping[str, Any]) -> Table | None:
    """Return the scores, with one row per score and one column per part of the data."""
    parts = [p for p in PARTS if any(key.rpartition(".")[0] == p for key in metrics)]
    names = {key.rpartition(".")[2] for key in metrics if key.rpartition(".")[0] in parts}
    ordered = [*(n for n in NAMES if n in names), *sorted(names - set(NAMES))]
    if not ordered:
        return None
    rows = [[NAMES.get(n, n), *(metrics.get(f"{p}.{n}") for p in parts)] for n in ordered]
    kinds: list[Kind] = ["text"]
    kinds += ["number" for _ in parts]
    return Table("Scores", ["score", *(PARTS[p] for p in parts)], kinds, rows)


def total_table(metrics: Mapping[str, Any]) -> Table | None:
    """Return the metrics of the fit as a whole."""
    known = [(title, metrics[key]) for key, title in TOTALS.items() if key in metrics]
    scored = {key for key in metrics if key.rpartition(".")[0] in PARTS}
    others = [(k, v) for k, v in metrics.items() if k not in TOTALS and k not in scored]
    rows = [*known, *others]
    if not rows:
        return None
    return Table("Summary of the fit", ["quantity", "value"], ["text", "number"], rows)


def robustness_table(tree: xarray.DataTree, score: str) -> Table | None:
    """List scores without attack, at the largest strength, and averaged over strengths."""
    rows: list[list[Any]] = []
    for curve in robustness_curves(tree, score):
        density = robustness_curve(tree, curve.attack, DENSITY)
        ends = [float(curve.value[0]), float(curve.value[-1]), curve.mean]
        last = None if density is None else float(density.value[-1])
        rows.append([ATTACKS[curve.attack], float(curve.strength[-1]), *ends, last])
    columns = [
        "attack",
        "largest strength",
        f"{NAMES[score]} without attack",
        "at largest strength",
        "average",
        "NLL at largest strength",
    ]
    kinds: list[Kind] = ["text"]
    kinds += ["number" for _ in columns[1:]]
    return Table("Scores under attack", columns, kinds, rows) if rows else None


def prior_table(priors: Mapping[str, Any]) -> Table | None:
    """List the prior of every slot."""
    rows = [(slot, str(prior)) for slot, prior in priors.items()]
    return Table("Priors as used", ["slot", "prior"], ["code", "code"], rows) if rows else None


def mapping_table(caption: str, values: Mapping[str, Any]) -> Table | None:
    """List a mapping without the values that are None."""
    rows = [(key, plain(value)) for key, value in values.items() if value is not None]
    return Table(caption, ["name", "value"], ["text", "code"], rows) if rows else None


def plain(value: Any) -> str:
    """Format a value of a configuration as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return str(value)


def findings_table(findings: Sequence[Finding]) -> Table | None:
    """List all findings, the most severe first."""
    ordered = sorted(findings, key=lambda finding: -LEVELS.index(finding.level))
    rows = [(f.level, f.check, f.message, f.value, f.threshold, f.source) for f in ordered]
    kinds: list[Kind] = ["level", "code", "text", "number", "number", "text"]
    columns = ["result", "check", "message", "value", "threshold", "source"]
    return Table("All checks", columns, kinds, rows) if rows else None


def parameter_table(rows: Sequence[Row]) -> Table | None:
    """List mean, sd and interval of the parameters of the forest plot."""
    with_truth = any(row.truth is not None for row in rows)
    cells = [
        (row.name, row.mean, row.sd, row.fit[0], row.fit[-1], *_true_interval(row, with_truth))
        for row in rows
    ]
    columns = ["parameter", "mean", "sd", "2.5 %", "97.5 %"]
    if with_truth:
        columns += ["true 2.5 %", "true 97.5 %"]
    kinds: list[Kind] = ["code"]
    kinds += ["number" for _ in columns[1:]]
    return Table("Parameters", columns, kinds, cells) if cells else None


def _true_interval(row: Row, wanted: bool) -> tuple[Any, ...]:
    if not wanted:
        return ()
    return (None, None) if row.truth is None else (row.truth[0], row.truth[-1])


def power_scaling_rows(scaled: Mapping[str, tuple[float, float]]) -> Table | None:
    """List sensitivities to prior and likelihood."""
    rows = [(name, prior, likelihood) for name, (prior, likelihood) in scaled.items()]
    columns = ["quantity", "to the prior", "to the likelihood"]
    kinds: list[Kind] = ["code", "number", "number"]
    return Table("Power-scaling sensitivity", columns, kinds, rows) if rows else None


def restart_table(tree: xarray.DataTree) -> Table | None:
    """List the restarts; the first is the fit of the report."""
    elbos = variable(tree, "optimization", "restart_elbo")
    errors = variable(tree, "optimization", "restart_elbo_error")
    if elbos is None or errors is None:
        return None
    starts = elbos["restart"].to_numpy() if "restart" in elbos.coords else range(len(elbos))
    columns: list[Sequence[Any]] = [
        [f"{start} (this fit)" if row == 0 else str(start) for row, start in enumerate(starts)],
        elbos.to_numpy().tolist(),
        errors.to_numpy().tolist(),
    ]
    names = ["start", "ELBO (nats)", "standard error"]
    density = variable(tree, "optimization", "restart_log_density")
    if density is not None:
        columns.append(density.to_numpy().mean(1).tolist())
        names.append("held-out log density per row")
    distances = restart_distances(tree)
    if distances is not None:
        columns.append([None, *distances.tolist()])
        names.append("distance of outputs (sds)")
    kinds: list[Kind] = ["text"]
    kinds += ["number" for _ in names[1:]]
    rows = list(zip(*columns, strict=True))
    return Table("Restarts", names, kinds, rows)


def sparsity_table(slots: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """List the number of groups kept in every slot."""
    rows = [(n, s["kept"], s["groups"], s.get("threshold")) for n, s in slots.items()]
    columns = ["slot", "groups kept", "of", "threshold"]
    kinds: list[Kind] = ["code", "number", "number", "number"]
    return Table("Groups of weights", columns, kinds, rows) if rows else None
