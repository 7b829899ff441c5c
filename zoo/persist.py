"""Fits on disk: what a finished run holds, written and read."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from zoo import store
from zoo.assemble import assemble
from zoo.config import RunConfig, dump_config, make_config, read_config
from zoo.data import Dataset, Schema
from zoo.errors import StoreError
from zoo.fitted import Fit
from zoo.report import render_report
from zoo.store import RunDirectory
from zoo.tree import write_tree


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


def write_outputs(fitted: Fit, directory: RunDirectory, dataset: Dataset) -> Fit:
    """Write everything that a finished run holds; the metrics last, because they mark its end."""
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
    tree = fitted.tree(dataset)
    tree.attrs |= {
        "task": dataset.schema.task,
        "summary": assembly.entry.summary,
        "reference": assembly.entry.reference,
        "command": f"zoo fit --config {store.CONFIG}",
        "config": json.dumps(fitted.config.model_dump(mode="json")),
        "priors": json.dumps({name: str(prior) for name, prior in assembly.model.priors.items()}),
        "metrics": json.dumps(metrics),
        "groups": json.dumps(groups.to_dict()),
    }
    with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
        write_tree(tree, temporary)
    directory.write_text(store.SUMMARY, fitted.summary().to_csv(index_label="site"))
    directory.write_json(store.GROUPS, groups.to_dict())
    directory.write_text(store.REPORT, render_report(tree))
    directory.write_json(store.METRICS, metrics)
    directory.remove(store.CHECKPOINT)
    return replace(fitted, path=directory.path)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
