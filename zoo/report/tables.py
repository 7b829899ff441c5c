"""Tables of the report: columns with a kind and rows of values; the template formats them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import xarray

from zoo.diagnostics import Finding
from zoo.diagnostics.finding import LEVELS, format_estimate
from zoo.diagnostics.reading import variable
from zoo.diagnostics.restarts import restart_distances
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
    "reference.trivial": "trivial reference",
    "reference.linear": "linear reference",
    "reference.kernel": "kernel reference",
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


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *kinds: Kind
) -> Table | None:
    """Return a table, or None without rows; the last kind applies to all further columns."""
    if not rows:
        return None
    return Table(caption, columns, [*kinds, *kinds[-1:] * (len(columns) - len(kinds))], rows)


def score_table(metrics: Mapping[str, Any]) -> Table | None:
    """Return the scores, with one row per score and one column per part of the data."""
    parts = [p for p in PARTS if any(key.rpartition(".")[0] == p for key in metrics)]
    names = {key.rpartition(".")[2] for key in metrics if key.rpartition(".")[0] in parts}
    ordered = [*(n for n in NAMES if n in names), *sorted(names - set(NAMES))]
    rows = [[NAMES.get(n, n), *(metrics.get(f"{p}.{n}") for p in parts)] for n in ordered]
    return table("Scores", ["score", *(PARTS[p] for p in parts)], rows, "text", "number")


def total_table(metrics: Mapping[str, Any]) -> Table | None:
    """Return the metrics of the fit as a whole."""
    known = [(title, _estimate(metrics, key)) for key, title in TOTALS.items() if key in metrics]
    scored = {key for key in metrics if key.rpartition(".")[0] in PARTS}
    shown = scored | {f"{key}_error" for key in TOTALS}
    others = [(k, v) for k, v in metrics.items() if k not in TOTALS and k not in shown]
    columns = ["quantity", "value"]
    return table("Summary of the fit", columns, [*known, *others], "text", "number")


def _estimate(metrics: Mapping[str, Any], key: str) -> Any:
    """Return a metric, with its standard error if that is known."""
    value, error = metrics[key], metrics.get(f"{key}_error")
    return value if error is None else format_estimate(float(value), float(error))


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
    return table("Scores under attack", columns, rows, "text", "number")


def prior_table(priors: Mapping[str, Any]) -> Table | None:
    """List the prior of every site."""
    rows = [(site, str(prior)) for site, prior in priors.items()]
    return table("Priors as used", ["site", "prior"], rows, "code")


def mapping_table(caption: str, values: Mapping[str, Any]) -> Table | None:
    """List a mapping without the values that are None."""
    return table(caption, ["name", "value"], plain_items(values), "text", "code")


def plain_items(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and formatted values of a mapping without the values that are None."""
    return [(name, plain(value)) for name, value in values.items() if value is not None]


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
    columns = ["result", "check", "message", "value", "threshold", "source"]
    kinds: list[Kind] = ["level", "code", "text", "number", "number", "text"]
    return table("All checks", columns, rows, *kinds)


def parameter_table(rows: Sequence[Row]) -> Table | None:
    """List mean, sd and interval of the parameters of the forest plot."""
    columns = ["parameter", "mean", "sd", "2.5 %", "97.5 %"]
    cells: list[list[Any]] = [[row.name, row.mean, row.sd, row.fit[0], row.fit[-1]] for row in rows]
    if any(row.truth is not None for row in rows):
        columns += ["true 2.5 %", "true 97.5 %"]
        for row, cell in zip(rows, cells, strict=True):
            cell += [None, None] if row.truth is None else [row.truth[0], row.truth[-1]]
    return table("Parameters", columns, cells, "code", "number")


def power_scaling_rows(scaled: Mapping[str, tuple[float, float]]) -> Table | None:
    """List sensitivities to prior and likelihood."""
    rows = [(name, prior, likelihood) for name, (prior, likelihood) in scaled.items()]
    columns = ["quantity", "to the prior", "to the likelihood"]
    return table("Power-scaling sensitivity", columns, rows, "code", "number")


def restart_table(tree: xarray.DataTree) -> Table | None:
    """List the restarts; the first is the fit of the report."""
    elbos = variable(tree, "optimization", "restart_elbo")
    errors = variable(tree, "optimization", "restart_elbo_error")
    if elbos is None or errors is None:
        return None
    starts = elbos["restart"].to_numpy() if "restart" in elbos.coords else range(len(elbos))
    columns: dict[str, list[Any]] = {
        "start": [f"{starts[0]} (this fit)", *map(str, starts[1:])],
        "ELBO (nats)": elbos.to_numpy().tolist(),
        "standard error": errors.to_numpy().tolist(),
    }
    density = variable(tree, "optimization", "restart_log_density")
    if density is not None:
        columns["held-out log density per row"] = density.to_numpy().mean(1).tolist()
    distances = restart_distances(tree)
    if distances is not None:
        columns["distance of outputs (sds)"] = [None, *distances.tolist()]
    rows = list(zip(*columns.values(), strict=True))
    return table("Restarts", list(columns), rows, "text", "number")


def sparsity_table(slots: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """List the number of groups kept in every slot."""
    rows = [(n, s["kept"], s["groups"], s.get("threshold")) for n, s in slots.items()]
    columns = ["slot", "groups kept", "of", "threshold"]
    return table("Groups of weights", columns, rows, "code", "number")
