"""Comparison of runs: scores, findings and cost of methods and priors."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray
from numpy.typing import NDArray

from zoo.diagnostics.robustness import DENSITY, MAIN_SCORES, Curve, main_score, robustness_curves
from zoo.errors import ConfigError
from zoo.fit import store
from zoo.fit.config import read_config
from zoo.fit.schema import read_tree
from zoo.fit.store import RunDirectory
from zoo.report import render_comparison
from zoo.workflow.outputs import read_judgement

Array = NDArray[Any]

#: Scores of held-out rows that are shown, if a run has them.
SCORES = ("accuracy", "rmse", "ece", "crps", "brier")
#: Columns with the value of a finding.
FINDINGS = {
    "khat": "approximation.khat",
    "distance_to_truth": "truth.functions.wasserstein",
    "sd_to_truth": "truth.functions.sd",
}


def compare(*runs: str | Path) -> pd.DataFrame:
    """Return a table with one row per run, best held-out density first.

    Differences of the negative log-likelihood from the best run have standard errors over rows;
    they are NaN if the held-out rows differ.

    Parameters
    ----------
    *runs
        Finished run directories.

    Examples
    --------
    >>> import tempfile, zoo
    >>> folder = tempfile.mkdtemp()
    >>> for method in zoo.list_models("mean*"):
    ...     fitted = zoo.fit(method, data="wine", num_steps=20, num_samples=10, out=f"{folder}/a")
    >>> zoo.compare(f"{folder}/a").shape[0]
    1
    """
    if not runs:
        raise ConfigError("name at least one run directory to compare.")
    rows: dict[str, dict[str, Any]] = {}
    densities: dict[str, tuple[Array, Array]] = {}
    for name, path in zip(_names(runs), runs, strict=True):
        directory = RunDirectory(path)
        directory.require_complete()
        tree = read_tree(directory.path / store.POSTERIOR)
        rows[name] = _row(directory, tree)
        if "held_out" in tree.children and "log_density" in tree["held_out"]:
            group = tree["held_out"].to_dataset()
            densities[name] = group["y"].to_numpy(), group["log_density"].to_numpy()
    table = pd.DataFrame.from_dict(rows, orient="index")
    table = table.join(_differences(densities)).sort_values("nll")
    first = ["method", "priors", "verdict", "nll", "nll_difference", "difference_error"]
    table.index.name = "run"
    return table[[*first, *(column for column in table if column not in first)]]


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Return unique names: the last folder, or the whole path."""
    short = [Path(run).name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def _row(directory: RunDirectory, tree: xarray.DataTree) -> dict[str, Any]:
    metrics: Mapping[str, float] = directory.read_json(store.METRICS)
    config = read_config(directory.path / store.CONFIG)
    judgement = read_judgement(directory)
    priors = "; ".join(f"{k}={v}" for k, v in (config.get("priors") or {}).items())
    row: dict[str, Any] = {
        "method": tree.attrs["method"],
        "priors": priors or "default",
        "guide": config.get("guide", "factorised"),
        "verdict": judgement.verdict.level,
        "nll": metrics.get("test.nll", np.nan),
    }
    row |= {name: metrics[f"test.{name}"] for name in SCORES if f"test.{name}" in metrics}
    values = {finding.check: finding.value for finding in reversed(judgement.findings)}
    row |= {name: values.get(check) for name, check in FINDINGS.items()}
    score = main_score(tree)
    curves = [] if score is None else robustness_curves(tree, score)
    row |= {f"{score}_under_{curve.attack}": curve.mean for curve in curves}
    return row | {
        "weights_left_percent": metrics.get("weights_left_percent"),
        "elbo": metrics.get("elbo"),
        "unknowns": tree.attrs.get("dimension"),
        "steps": metrics.get("steps"),
        "seconds": metrics.get("seconds"),
    }


def curves_of(*runs: str | Path) -> dict[str, list[Curve]]:
    """Return scores as functions of the strength of attacks, for the runs that have them."""
    found = {}
    for name, path in zip(_names(runs), runs, strict=True):
        tree = read_tree(RunDirectory(path).path / store.POSTERIOR)
        curves = [c for score in (*MAIN_SCORES, DENSITY) for c in robustness_curves(tree, score)]
        if curves:
            found[name] = curves
    return found


def _differences(densities: Mapping[str, tuple[Array, Array]]) -> pd.DataFrame:
    """Return differences of the NLL from the best run, and their standard errors."""
    best = max(densities, key=lambda name: float(densities[name][1].mean()), default="")
    found = {}
    for name, (y, density) in densities.items():
        observed, reference = densities[best]
        if np.array_equal(y, observed):
            gap = reference - density
            error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
            found[name] = [gap.mean(), error]
    columns = ["nll_difference", "difference_error"]
    return pd.DataFrame.from_dict(found, orient="index", columns=columns).astype(float)


def write_comparison(
    table: pd.DataFrame, path: Path, curves: Mapping[str, Sequence[Curve]] | None = None
) -> None:
    """Write a comparison as HTML, CSV or JSON, depending on the suffix of the file."""

    def page() -> str:
        columns = {"nll_difference": "difference", "difference_error": "error"}
        differences = table[list(columns)].rename(columns=columns)
        return render_comparison(
            table,
            {"negative log-likelihood per held-out row": differences},
            robustness=curves or {},
            lead="Best held-out density first; in the figure, further right is worse. The verdict "
            "says whether a run can be used at all.",
        )

    writers: dict[str, Callable[[], str]] = {
        ".html": page,
        ".csv": lambda: table.to_csv(),
        ".json": lambda: table.reset_index().to_json(orient="records", indent=1) + "\n",
    }
    if path.suffix not in writers:
        raise ConfigError(
            f"cannot write a comparison to {str(path)!r}. Accepted endings: {', '.join(writers)}."
        )
    with store.atomic_path(path) as temporary:
        temporary.write_text(writers[path.suffix](), encoding="utf-8")
