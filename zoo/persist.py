"""Fits on disk: what a finished run holds, written and read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import xarray
from torch import Tensor, nn

from zoo import store
from zoo.assemble import assemble
from zoo.config import RunConfig, dump_config, make_config, read_config
from zoo.data import Dataset, Schema
from zoo.diagnostics import Finding, diagnose, from_json, refused_truth, to_json
from zoo.diagnostics.robustness import GROUP as ROBUSTNESS
from zoo.errors import ConfigError, StoreError, TruthError
from zoo.fit_tree import fit_tree
from zoo.fitted import Fit
from zoo.report import render_report
from zoo.restarts import remove_restart_files
from zoo.store import RunDirectory
from zoo.tree import read_tree, write_tree


def load(path: str | Path, *, net: nn.Module | None = None) -> Fit:
    """Load a finished run.

    Parameters
    ----------
    path
        The run directory.
    net
        The network, if the run was made with a network object instead of a text.
    """
    directory = RunDirectory(path)
    directory.require_complete()
    config = make_config(**read_config(directory.path / store.CONFIG))
    schema = Schema.from_dict(directory.read_json(store.DATA))
    tensors, numbers = directory.read_tensors(store.GUIDE)
    try:
        losses, num_data, seconds = tensors["losses"], numbers["num_data"], numbers["seconds"]
    except KeyError as error:
        raise StoreError(f"{str(directory.path / store.GUIDE)!r} lacks {error}.") from None
    assembly = assemble(config, schema, num_data=int(num_data), net=net)
    for part, module in (("model.", assembly.model), ("guide.", assembly.guide)):
        try:
            module.load_state_dict(_under(part, tensors))
        except RuntimeError as error:
            raise StoreError(
                f"{str(directory.path / store.GUIDE)!r} does not fit its configuration: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None
    buffers = _under("buffers.", tensors)
    return Fit(assembly, schema, losses, seconds, directory.path, buffers=buffers)


def save(fitted: Fit, out: str | Path) -> Fit:
    """Write a fit that was made in memory to a run directory.

    Parameters
    ----------
    fitted
        What `zoo.fit` returned.
    out
        The directory; it must not exist, or be empty.
    """
    if fitted.dataset is None:
        raise StoreError(
            f"this fit was loaded from {str(fitted.path)!r} and does not hold its data; "
            "copy that directory instead."
        )
    directory = RunDirectory.new(out)
    write_inputs(directory, fitted.config, fitted.dataset)
    return write_outputs(fitted, directory, fitted.dataset)


def write_inputs(directory: RunDirectory, config: RunConfig, dataset: Dataset) -> None:
    """Write what a run needs to be repeated or resumed."""
    directory.write_json(store.DATA, dataset.schema.to_dict())
    directory.write_text(store.CONFIG, dump_config(config))


def write_outputs(
    fitted: Fit,
    directory: RunDirectory,
    dataset: Dataset,
    truth: Mapping[str, Any] | None = None,
    *,
    robustness: bool = False,
) -> Fit:
    """Write everything that a finished run holds; the metrics last, because they mark its end.

    ``truth`` holds options of `zoo.truth`; None samples none. ``robustness`` adds scores under
    noise and attacks.
    """
    assembly = fitted.assembly
    states = {"model": assembly.model.state_dict(), "guide": assembly.guide.state_dict()}
    tensors = {f"{part}.{k}": v for part, state in states.items() for k, v in state.items()}
    directory.write_tensors(
        store.GUIDE,
        tensors
        | {f"buffers.{name}": value for name, value in fitted.buffers.items()}
        | {"losses": fitted.losses},
        {"num_data": assembly.model.num_data, "seconds": fitted.seconds},
    )
    groups = fitted.groups(dataset)
    metrics = fitted.metrics(dataset, groups)
    tree = fit_tree(fitted, dataset, metrics, groups)
    if robustness:
        tree[ROBUSTNESS] = xarray.DataTree(fitted.robustness(dataset))
    with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
        write_tree(tree, temporary)
    directory.write_text(store.SUMMARY, fitted.summary().to_csv(index_label="site"))
    directory.write_json(store.GROUPS, groups.to_dict())
    truth_tree: xarray.DataTree | None = None
    extra: list[Finding] = []
    if truth is not None:
        truth_tree, extra = write_truth(fitted, directory, dataset, **truth)
    _write_judgement(directory, tree, truth_tree, extra)
    directory.write_json(store.METRICS, metrics)
    directory.remove(store.CHECKPOINT)
    remove_restart_files(directory)
    return replace(fitted, path=directory.path)


def write_truth(
    fitted: Fit, directory: RunDirectory, dataset: Dataset, **options: Any
) -> tuple[xarray.DataTree | None, list[Finding]]:
    """Sample the truth and store it; one that is refused is a finding, not an error."""
    try:
        tree = fitted.truth(dataset, **options)
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
        return _write_judgement(directory, tree, read_tree(stored), [])
    # Why there is no truth is known from before.
    refused = [f for f in _known_findings(directory) if f.check == "truth.accepted"]
    return _write_judgement(directory, tree, None, refused)


def _write_judgement(
    directory: RunDirectory,
    tree: xarray.DataTree,
    truth: xarray.DataTree | None,
    extra: Sequence[Finding],
) -> list[Finding]:
    findings = [*diagnose(tree, truth), *extra]
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


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
