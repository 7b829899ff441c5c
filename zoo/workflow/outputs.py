"""What a run directory holds beyond the fit: tree, findings, truth, robustness, report."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import xarray
from torch import nn

from zoo.data import Dataset
from zoo.diagnostics import Finding, diagnose, from_json, refused_truth, to_json
from zoo.diagnostics.robustness import GROUP as ROBUSTNESS
from zoo.errors import ConfigError, StoreError, TruthError
from zoo.fit import store
from zoo.fit.prepare import run_data, threads
from zoo.fit.restarts import remove_restart_files
from zoo.fit.result import Fitted
from zoo.fit.schema import read_tree, write_tree
from zoo.fit.store import RunDirectory
from zoo.fit.stored import read_fitted, write_fitted
from zoo.fit.tree import fit_tree
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
    """Write everything that a finished run holds; the metrics last, because they mark its end.

    ``truth`` holds options of `zoo.truth`; None samples none. ``robustness`` adds scores under
    noise and attacks.
    """
    write_fitted(fitted, directory)
    groups = fitted.groups(dataset)
    metrics = fitted.metrics(dataset, groups)
    tree = fit_tree(fitted, dataset, metrics, groups)
    if robustness:
        tree[ROBUSTNESS] = xarray.DataTree(robustness_of(fitted, dataset))
    with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
        write_tree(tree, temporary)
    directory.write_text(store.SUMMARY, fitted.summary().to_csv(index_label="site"))
    directory.write_json(store.GROUPS, groups.to_dict())
    truth_tree: xarray.DataTree | None = None
    extra: list[Finding] = []
    if truth is not None:
        truth_tree, extra = write_truth(fitted, directory, dataset, **truth)
    write_judgement(directory, tree, truth_tree, extra)
    directory.write_json(store.METRICS, metrics)
    directory.remove(store.CHECKPOINT)
    remove_restart_files(directory)


def write_truth(
    fitted: Fitted, directory: RunDirectory, dataset: Dataset, **options: Any
) -> tuple[xarray.DataTree | None, list[Finding]]:
    """Sample the truth and store it; one that is refused is a finding, not an error."""
    try:
        tree = truth_of(fitted, dataset, **options)[1]
    except (TruthError, ConfigError) as error:
        return None, [refused_truth(str(error))]
    with store.atomic_path(directory.path / store.TRUTH) as temporary:
        write_tree(tree, temporary)
    return tree, []


def write_report(directory: RunDirectory) -> list[Finding]:
    """Judge what is stored and write findings and report; nothing else of a run is needed."""
    tree = read_tree(directory.path / store.POSTERIOR)
    stored = directory.path / store.TRUTH
    if stored.exists():
        return write_judgement(directory, tree, read_tree(stored), [])
    # Why there is no truth is known from before.
    refused = [f for f in _known_findings(directory) if f.check == "truth.accepted"]
    return write_judgement(directory, tree, None, refused)


def findings_of(tree: xarray.DataTree, truth: xarray.DataTree | None = None) -> list[Finding]:
    """Judge a tree; what could not be checked is among the findings."""
    missing = json.loads(tree.attrs.get("left_out", "[]"))
    notes = [
        Finding(f"model.left_out_{number}", "info", None, None, message)
        for number, message in enumerate(missing, start=1)
    ]
    return [*diagnose(tree, truth), *notes]


def write_judgement(
    directory: RunDirectory,
    tree: xarray.DataTree,
    truth: xarray.DataTree | None,
    extra: Sequence[Finding],
) -> list[Finding]:
    """Write findings and report of a tree; ``extra`` are findings that it does not tell."""
    findings = [*findings_of(tree, truth), *extra]
    directory.write_text(store.FINDINGS, to_json(findings))
    page = render_report(tree, truth, findings, compression=_known_compression(directory))
    directory.write_text(store.REPORT, page)
    return findings


def _known_compression(directory: RunDirectory) -> dict[str, Any]:
    """Return what was measured when the run was compressed; nothing if it was not."""
    if not (directory.path / store.COMPRESSION).exists():
        return {}
    known = directory.read_json(store.COMPRESSION)
    return known if isinstance(known, dict) else {}


def read_findings(directory: RunDirectory) -> list[Finding]:
    """Return the findings of a finished run."""
    directory.require_complete()
    if not (directory.path / store.FINDINGS).exists():
        raise StoreError(
            f"the run in {str(directory.path)!r} has no findings. Make them with: zoo report "
            f"{directory.path}"
        )
    return _known_findings(directory)


def _known_findings(directory: RunDirectory) -> list[Finding]:
    path = directory.path / store.FINDINGS
    try:
        return from_json(path.read_text(encoding="utf-8")) if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the findings {str(path)!r}: {error}") from None


def write_robustness(
    directory: RunDirectory,
    *,
    dataset: Dataset | None = None,
    net: nn.Module | None = None,
    **options: Any,
) -> None:
    """Score a finished run under noise and attacks; the curves are added to its tree.

    Options are as for `zoo.robustness.curves.robustness_of`.
    """
    fitted = read_fitted(directory.path, net=net)
    data, _ = run_data(fitted.config, dataset)
    with directory.locked(), threads(fitted.config.num_threads):
        tree = read_tree(directory.path / store.POSTERIOR)
        tree[ROBUSTNESS] = xarray.DataTree(robustness_of(fitted, data, **options))
        with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
            write_tree(tree, temporary)
