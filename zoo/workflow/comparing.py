"""Runs side by side: what methods and priors cost, predict and can be trusted with."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray
from numpy.typing import NDArray

from zoo.diagnostics import Finding, verdict
from zoo.diagnostics.robustness import (
    DENSITY,
    MAIN_SCORES,
    Curve,
    main_score,
    robustness_curves,
)
from zoo.errors import ConfigError
from zoo.fit import store
from zoo.fit.config import read_config
from zoo.fit.schema import read_tree
from zoo.fit.store import RunDirectory
from zoo.report import render_comparison
from zoo.workflow.outputs import read_findings

Array = NDArray[Any]

#: Scores of held-out rows that are shown, if a run has them.
SCORES = ("accuracy", "rmse", "ece", "crps", "brier")
#: What the figure of differences shows.
SCORE = "negative log-likelihood per held-out row"
#: Findings whose number is a column.
FINDINGS = {
    "khat": "approximation.khat",
    "distance_to_truth": "truth.functions.wasserstein",
    "sd_to_truth": "truth.functions.sd",
}


def compare(*runs: str | Path) -> pd.DataFrame:
    """Return a table with one row per run, best held-out density first.

    Differences of the negative log-likelihood are to the best run, with the standard error of the
    difference over rows; they are left out where runs have other held-out rows.

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
    rows, densities = {}, {}
    for name, path in zip(_names(runs), runs, strict=True):
        directory = RunDirectory(path)
        directory.require_complete()
        tree = read_tree(directory.path / store.POSTERIOR)
        rows[name] = _row(directory, tree)
        densities[name] = _held_out_densities(tree)
    table = pd.DataFrame.from_dict(rows, orient="index")
    table = pd.concat([table, _differences(densities)], axis=1).sort_values("nll")
    first = ["method", "priors", "verdict", "nll", "nll_difference", "difference_error"]
    table.index.name = "run"
    return table[[*first, *(column for column in table if column not in first)]]


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Return short names that are different: the last folder, or the whole path."""
    short = [Path(run).name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def _row(directory: RunDirectory, tree: xarray.DataTree) -> dict[str, Any]:
    metrics: Mapping[str, float] = directory.read_json(store.METRICS)
    config = read_config(directory.path / store.CONFIG)
    findings = read_findings(directory)
    given = config.get("priors") or {}
    priors = "; ".join(f"{k}={v}" for k, v in given.items())
    row: dict[str, Any] = {
        "method": tree.attrs["method"],
        "priors": priors or "default",
        "guide": config.get("guide", "factorised"),
        "verdict": verdict(findings).level,
        "nll": metrics.get("test.nll", np.nan),
    }
    row |= {name: metrics[f"test.{name}"] for name in SCORES if f"test.{name}" in metrics}
    row |= {name: _value(findings, check) for name, check in FINDINGS.items()}
    row |= _robustness(tree)
    return row | {
        "weights_left_percent": metrics.get("weights_left_percent"),
        "elbo": metrics.get("elbo"),
        "unknowns": tree.attrs.get("dimension"),
        "steps": metrics.get("steps"),
        "seconds": metrics.get("seconds"),
    }


def _robustness(tree: xarray.DataTree) -> dict[str, float]:
    """Return the main score on average over the strengths of every attack."""
    score = main_score(tree)
    curves = [] if score is None else robustness_curves(tree, score)
    return {f"{score}_under_{curve.attack}": curve.mean for curve in curves}


def curves_of(*runs: str | Path) -> dict[str, list[Curve]]:
    """Return scores over the strength of attacks, by run; runs without any are left out."""
    found = {}
    for name, path in zip(_names(runs), runs, strict=True):
        tree = read_tree(RunDirectory(path).path / store.POSTERIOR)
        curves = [c for score in (*MAIN_SCORES, DENSITY) for c in robustness_curves(tree, score)]
        if curves:
            found[name] = curves
    return found


def _value(findings: Sequence[Finding], check: str) -> float | None:
    return next((finding.value for finding in findings if finding.check == check), None)


def _held_out_densities(tree: xarray.DataTree) -> tuple[Array, Array] | None:
    """Return the observed values and log predictive densities of held-out rows."""
    if "held_out" not in tree.children or "log_density" not in tree["held_out"]:
        return None
    group = tree["held_out"].to_dataset()
    return group["y"].to_numpy(), group["log_density"].to_numpy()


def _differences(densities: Mapping[str, tuple[Array, Array] | None]) -> pd.DataFrame:
    """Return the difference of the NLL to the best run, and its standard error."""
    known = {name: pair for name, pair in densities.items() if pair is not None}
    columns = pd.DataFrame(
        np.nan, index=list(densities), columns=["nll_difference", "difference_error"]
    )
    if not known:
        return columns
    best = max(known, key=lambda name: float(known[name][1].mean()))
    observed, reference = known[best]
    for name, (y, density) in known.items():
        if y.shape == observed.shape and np.array_equal(y, observed):
            gap = reference - density
            error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
            columns.loc[name] = [gap.mean(), error]
    return columns


def _page(table: pd.DataFrame, curves: Mapping[str, Sequence[Curve]]) -> str:
    """Return the comparison as a page, with figures of differences and of robustness."""
    columns = {"nll_difference": "difference", "difference_error": "error"}
    frame = table[list(columns)].rename(columns=columns)
    return render_comparison(
        table,
        {SCORE: frame},
        robustness=curves,
        lead="Best held-out density first; in the figure, further right is worse. The verdict says "
        "whether a run can be used at all.",
    )


def write_comparison(
    table: pd.DataFrame, path: Path, curves: Mapping[str, Sequence[Curve]] | None = None
) -> None:
    """Write a comparison as a page, CSV or JSON, depending on the ending of the file."""
    writers: dict[str, Callable[[], str]] = {
        ".html": lambda: _page(table, curves or {}),
        ".csv": lambda: table.to_csv(),
        ".json": lambda: table.reset_index().to_json(orient="records", indent=1) + "\n",
    }
    if path.suffix not in writers:
        raise ConfigError(
            f"cannot write a comparison to {str(path)!r}. Accepted endings: {', '.join(writers)}."
        )
    with store.atomic_path(path) as temporary:
        temporary.write_text(writers[path.suffix](), encoding="utf-8")
