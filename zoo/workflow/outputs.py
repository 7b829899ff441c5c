"""Results in a run directory: tree, truth, robustness, findings and report."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import xarray
from torch import nn

from zoo.data import Dataset
from zoo.diagnostics import Finding, Judgement, judge, refused_truth
from zoo.diagnostics.robustness import GROUP as ROBUSTNESS
from zoo.errors import ConfigError, StoreError, ZooError
from zoo.fit import store
from zoo.fit.prepare import run_data, threads
from zoo.fit.restarts import remove_restart_files
from zoo.fit.result import Fitted
from zoo.fit.schema import read_tree, write_tree
from zoo.fit.store import RunDirectory
from zoo.fit.stored import read_fitted, write_fitted
from zoo.fit.tree import fit_tree
from zoo.infer.nuts.budget import BudgetError
from zoo.report import render_report
from zoo.robustness.curves import robustness_of
from zoo.truth.of_fit import truth_of


def write_outputs(
    fitted: Fitted,
    directory: RunDirectory,
    dataset: Dataset,
    truth: Mapping[str, Any] | None = None,
    *,
    robustness: bool = False,
) -> None:
    """Write all results of a finished run.

    ``truth`` are options of `zoo.truth`, or None to leave it out. ``robustness`` adds scores under
    noise and attacks.
    """
    write_fitted(fitted, directory)
    groups = fitted.groups(dataset)
    tree = fit_tree(fitted, dataset, fitted.metrics(dataset, groups), groups)
    metrics = json.loads(tree.attrs["metrics"])
    if robustness:
        tree[ROBUSTNESS] = xarray.DataTree(robustness_of(fitted, dataset))
    directory.write_json(store.GROUPS, groups.to_dict())
    sample = None if truth is None else lambda: truth_of(fitted, dataset, **truth)[1]
    write_results(directory, tree, fitted.summary(), metrics, sample)
    remove_restart_files(directory)


def write_results(
    directory: RunDirectory,
    tree: xarray.DataTree,
    summary: pd.DataFrame,
    metrics: Mapping[str, float],
    sample_truth: Callable[[], xarray.DataTree] | None,
) -> None:
    """Write tree, summary, truth, findings and report, and the metrics last: they mark the end.

    A truth that is refused becomes a finding instead of an error.
    """
    write_tree(tree, directory.path / store.POSTERIOR)
    directory.write_text(store.SUMMARY, summary.to_csv(index_label="site"))
    truth, extra = None, []
    if sample_truth is not None:
        try:
            truth = sample_truth()
        except ZooError as error:
            is_late = isinstance(error, BudgetError)
            extra = [refused_truth(str(error), is_out_of_budget=is_late)]
        else:
            write_tree(truth, directory.path / store.TRUTH)
    write_judgement(directory, tree, truth, extra)
    directory.write_json(store.METRICS, metrics)
    directory.remove(store.CHECKPOINT)


def budget_of(truth: bool | float) -> dict[str, float]:
    """Return the options of a truth that is asked for with ``True`` or a number of seconds."""
    if isinstance(truth, bool):
        return {}
    if not truth > 0:
        raise ConfigError(f"truth must be True, or a positive number of seconds. Got {truth}.")
    return {"max_seconds": float(truth)}


def write_report(directory: RunDirectory) -> Judgement:
    """Write findings and report again, from the stored trees."""
    tree = read_tree(directory.path / store.POSTERIOR)
    stored = directory.path / store.TRUTH
    if stored.exists():
        return write_judgement(directory, tree, read_tree(stored), [])
    # Keep the reason why there is no truth.
    known = _known_judgement(directory)
    refused = [f for f in known.findings if f.check == "truth.accepted"] if known else []
    return write_judgement(directory, tree, None, refused)


def write_judgement(
    directory: RunDirectory,
    tree: xarray.DataTree,
    truth: xarray.DataTree | None,
    extra: Sequence[Finding],
) -> Judgement:
    """Write findings and report of a tree; ``extra`` are findings to add."""
    judgement = judge(tree, truth, extra)
    directory.write_text(store.FINDINGS, judgement.to_json())
    has_compression = (directory.path / store.COMPRESSION).exists()
    measured = directory.read_json(store.COMPRESSION) if has_compression else None
    compression = measured if isinstance(measured, dict) else None
    page = render_report(tree, truth, judgement, compression=compression)
    directory.write_text(store.REPORT, page)
    return judgement


def read_judgement(directory: RunDirectory) -> Judgement:
    """Return the findings of a finished run."""
    directory.require_complete()
    known = _known_judgement(directory)
    if known is None:
        raise StoreError(
            f"the run in {str(directory.path)!r} has no findings. Make them with: zoo report "
            f"{directory.path}"
        )
    return known


def _known_judgement(directory: RunDirectory) -> Judgement | None:
    path = directory.path / store.FINDINGS
    try:
        return Judgement.from_json(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the findings {str(path)!r}: {error}") from None


def write_robustness(
    directory: RunDirectory,
    *,
    dataset: Dataset | None = None,
    net: nn.Module | None = None,
    **options: Any,
) -> None:
    """Add scores under noise and attacks to the tree of a finished run.

    Options are those of `zoo.robustness.curves.robustness_of`.
    """
    fitted = read_fitted(directory.path, net=net)
    data, _ = run_data(fitted.config, dataset)
    with directory.locked(), threads(fitted.config.num_threads):
        tree = read_tree(directory.path / store.POSTERIOR)
        tree[ROBUSTNESS] = xarray.DataTree(robustness_of(fitted, data, **options))
        write_tree(tree, directory.path / store.POSTERIOR)
