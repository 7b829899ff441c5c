"""Training, with checkpoints, and from other starts."""

from concurrent.futures import Executor
from dataclasses import replace

from torch import nn

from zoo.fit.prepare import Prepared, finished_fit, prepare, threads
from zoo.fit.restarts import run_restarts
from zoo.fit.result import Fitted
from zoo.fit.store import RunDirectory
from zoo.fit.stored import checkpoints, load_checkpoint, network_config, write_inputs


def begin(prepared: Prepared, directory: RunDirectory | None) -> Prepared:
    """Choose how steps are executed, and write the files needed to resume the run."""
    assembly, svi = prepared.assembly, prepared.svi
    if assembly.config.compile == "auto":
        with threads(assembly.config.num_threads):
            svi.choose_mode()
        config = assembly.config.model_copy(update={"compile": svi.mode})
        prepared = replace(prepared, assembly=replace(assembly, config=config))
    if directory is not None:
        write_inputs(directory, prepared.assembly.config, prepared.dataset)
    return prepared


def continued(directory: RunDirectory, *, net: nn.Module | None = None) -> Prepared:
    """Return an interrupted run in the state of its last checkpoint."""
    directory.require_unfinished()
    prepared = prepare(network_config(directory), net=net)
    directory.remove_leftovers()
    load_checkpoint(directory, prepared.svi)
    return prepared


def train(
    prepared: Prepared,
    directory: RunDirectory | None = None,
    *,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
) -> Fitted:
    """Train to the end, with checkpoints if there is a directory, then from other starts.

    The caller holds the lock of the directory; ``executor`` is for the restarts.
    """
    config = prepared.assembly.config
    with threads(config.num_threads):
        losses = prepared.svi.run(
            progress_bar=progress_bar,
            checkpoint_every=config.checkpoint_every,
            on_checkpoint=checkpoints(directory),
        )
        restarts = run_restarts(prepared, directory, executor=executor, progress_bar=progress_bar)
        return replace(finished_fit(prepared, losses), restarts=restarts)
