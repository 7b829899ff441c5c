"""Further fits of one model from other starts.

A start determines initial weights, batches and noise; the data and the held-out rows stay the same.
If the fits differ in their ELBOs or predictions, the result depends on the start. Only the outcome
of a fit is stored; ``--start K`` repeats one of them as a separate run.
"""

import importlib
import math
import pickle
import re
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from zoo.data import Dataset
from zoo.errors import ConfigError
from zoo.fit.build import Assembly
from zoo.fit.comparable import ARRAYS, Outcome, outcome_of
from zoo.fit.config import RunConfig
from zoo.fit.prepare import Prepared, finished_fit, prepare, threads
from zoo.fit.store import RunDirectory
from zoo.fit.stored import checkpoints, load_checkpoint
from zoo.infer.svi.loop import DivergedError
from zoo.infer.tasks.executor import available_cores
from zoo.infer.tasks.running import Report, run_tasks

#: Outcomes of the finished restarts of an unfinished run.
RESTARTS = "restarts.safetensors"


def run_restarts(
    prepared: Prepared,
    directory: RunDirectory | None,
    *,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
) -> tuple[Outcome, ...]:
    """Fit from as many other starts as the configuration asks for.

    Outcomes and checkpoints are written to the directory, if there is one, so that an interrupted
    run can be continued. By default there are as many processes as the cores allow.
    """
    assembly, config = prepared.assembly, prepared.assembly.config
    starts = range(config.start + 1, config.start + config.restarts + 1)
    known = {} if directory is None else _read_outcomes(directory)
    wanted = [start for start in starts if start not in known]

    def keep(index: int, outcome: Outcome) -> None:
        known[wanted[index]] = outcome
        if directory is not None:
            _write_outcomes(directory, known)
            directory.remove(_checkpoint(wanted[index]))

    tasks = [
        partial(
            fit_start,
            config.model_copy(update={"start": start, "restarts": 0}),
            prepared.source,
            prepared.net,
            assembly.entry.method.__module__,
            None if directory is None else directory.path.absolute(),
        )
        for start in wanted
    ]
    if tasks:
        run_tasks(
            tasks,
            _choose_executor(executor, assembly, prepared.net),
            length=config.recipe(assembly.entry).num_steps,
            unit="step",
            description="restarts",
            progress_bar=progress_bar,
            on_result=keep,
        )
    return tuple(known[start] for start in starts)


def fit_start(
    config: RunConfig,
    dataset: Dataset,
    net: nn.Module | None,
    module: str,
    folder: Path | None,
    report: Report | None,
) -> Outcome:
    """Fit one start; a task that can be sent to another process.

    ``module`` registers the method. Checkpoints are written to ``folder`` if it exists on this
    machine, and ``report`` receives the number of steps done.
    """
    importlib.import_module(module)
    directory = RunDirectory(folder) if folder is not None and folder.is_dir() else None
    name = _checkpoint(config.start)

    prepared = prepare(config, dataset=dataset, net=net)
    if directory is not None:
        load_checkpoint(directory, prepared.svi, name)
    with threads(config.num_threads):
        try:
            losses = prepared.svi.run(
                progress_bar=False,
                checkpoint_every=config.checkpoint_every,
                on_checkpoint=checkpoints(directory, name),
                on_step=report,
            )
        except DivergedError:
            nothing = np.empty(0)
            return Outcome(config.start, math.nan, math.nan, nothing, nothing, nothing)
        return outcome_of(finished_fit(prepared, losses), prepared.dataset)


def remove_restart_files(directory: RunDirectory) -> None:
    """Remove outcomes and checkpoints of restarts."""
    directory.remove(RESTARTS)
    for path in directory.path.glob(_checkpoint("*")):
        directory.remove(path.name)


def _checkpoint(start: int | str) -> str:
    return f"checkpoint.start_{start}.safetensors"


def _choose_executor(
    executor: Executor | str | None, assembly: Assembly, net: nn.Module | None
) -> Executor | str:
    """Return where restarts run; by default in processes if the fits can be sent to them."""
    sendable = _can_be_sent(net) and assembly.entry.method.__module__ != "__main__"
    if isinstance(executor, str) and executor.startswith("processes") and not sendable:
        raise ConfigError(
            f"the executor {executor!r} cannot be used: the network or the method is defined in "
            "the running script, which other processes do not import. Move it to a module, or use "
            "the executor 'serial'."
        )
    if executor is not None:
        return executor
    config = assembly.config
    workers = available_cores() // (config.num_threads or 1)
    if not sendable or config.device != "cpu" or min(workers, config.restarts) < 2:
        return "serial"
    return f"processes:{min(workers, config.restarts)}"


def _can_be_sent(net: nn.Module | None) -> bool:
    if net is None:
        return True
    if any(type(module).__module__ == "__main__" for module in net.modules()):
        return False
    try:
        pickle.dumps(net)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _write_outcomes(directory: RunDirectory, outcomes: dict[int, Outcome]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, float] = {}
    for start, outcome in outcomes.items():
        tensors |= {f"{start}.{k}": torch.from_numpy(getattr(outcome, k)) for k in ARRAYS}
        numbers |= {f"{start}.elbo": outcome.elbo, f"{start}.elbo_error": outcome.elbo_error}
    directory.write_tensors(RESTARTS, tensors, numbers)


def _read_outcomes(directory: RunDirectory) -> dict[int, Outcome]:
    if not (directory.path / RESTARTS).exists():
        return {}
    tensors, numbers = directory.read_tensors(RESTARTS)
    starts = [int(name.partition(".")[0]) for name in numbers if re.fullmatch(r"\d+\.elbo", name)]
    return {
        start: Outcome(
            start,
            numbers[f"{start}.elbo"],
            numbers[f"{start}.elbo_error"],
            *(tensors[f"{start}.{name}"].numpy() for name in ARRAYS),
        )
        for start in starts
    }
