"""Further fits of one model from other starting points, and what is kept of each.

A start decides initial weights, batches and noise; data, held-out rows and everything else stay.
Fits that end with other ELBOs or other predictions tell that the result depends on where training
began. Each is a task of an executor; of each only a few numbers are kept, and any of them can be
had as a fit of its own by naming its start.
"""

import importlib
import math
import pickle
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zoo.assemble import Assembly
from zoo.config import RunConfig
from zoo.data import Dataset
from zoo.errors import ConfigError
from zoo.fit_tree import function_points, held_out_log_density, held_out_rows
from zoo.fitted import Fit, training_tensors
from zoo.infer.executor import available_cores
from zoo.infer.objective import elbo_draws
from zoo.infer.svi import SVI, DivergedError
from zoo.infer.tasks import Report, run_tasks
from zoo.store import RunDirectory

if TYPE_CHECKING:
    from zoo.workflow import Prepared

Array = NDArray[Any]

#: What is known of the restarts that are done, while others are not.
RESTARTS = "restarts.safetensors"
#: Draws behind an ELBO, and how many times rows they may be together.
MIN_ELBO_DRAWS, MAX_ELBO_DRAWS = 8, 64
ELBO_ENTRIES = 500_000


@dataclass(frozen=True)
class Outcome:
    """What is kept of one fit.

    Attributes
    ----------
    start
        Which start it had, see `zoo.config.RunConfig`.
    elbo, elbo_error
        The final ELBO in nats and its standard error; not a number if training diverged.
    outputs_mean, outputs_sd
        Posterior mean and sd of the network's outputs at fixed rows, shape ``(points, outputs)``;
        empty if training diverged.
    log_density
        Log predictive density of each held-out row; empty if there are none.
    """

    start: int
    elbo: float
    elbo_error: float
    outputs_mean: Array
    outputs_sd: Array
    log_density: Array


#: The arrays of an outcome.
ARRAYS = ("outputs_mean", "outputs_sd", "log_density")


def outcome_of(fitted: Fit, dataset: Dataset) -> Outcome:
    """Return what is kept of a fit when it is held against others."""
    x, y = training_tensors(fitted.assembly, dataset)
    number = int(np.clip(ELBO_ENTRIES // len(x), MIN_ELBO_DRAWS, MAX_ELBO_DRAWS))
    elbos = elbo_draws(fitted.assembly.model, fitted.assembly.guide, x, y, number)
    outputs = fitted.outputs(function_points(dataset), fitted.draws.values).double()
    density = np.empty(0)
    held_out, targets = held_out_rows(dataset)
    if len(held_out):
        f = fitted.outputs(held_out, fitted.draws.values)
        density = held_out_log_density(fitted, f, targets)
    return Outcome(
        start=fitted.config.start,
        elbo=float(elbos.mean()),
        elbo_error=float(elbos.std()) / math.sqrt(number),
        outputs_mean=outputs.mean(0).cpu().numpy(),
        outputs_sd=outputs.std(0).cpu().numpy(),
        log_density=density,
    )


def restart_arrays(outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """Return outcomes as arrays with one row each; what diverged has no numbers."""
    found: dict[str, Array] = {
        "restart": np.array([outcome.start for outcome in outcomes]),
        "restart_elbo": np.array([outcome.elbo for outcome in outcomes]),
        "restart_elbo_error": np.array([outcome.elbo_error for outcome in outcomes]),
    }
    for name in ARRAYS:
        rows = [getattr(outcome, name) for outcome in outcomes]
        shape = max(rows, key=np.size).shape
        filled = [row if row.shape == shape else np.full(shape, np.nan) for row in rows]
        if math.prod(shape):
            found[f"restart_{name}"] = np.stack(filled)
    return found


def run_restarts(
    prepared: "Prepared",
    directory: RunDirectory | None,
    *,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
) -> tuple[Outcome, ...]:
    """Fit from as many other starts as the configuration asks for.

    With a directory every outcome is written as soon as it is known, and fits that are under way
    have checkpoints, so that an interrupted run goes on where it was.

    Parameters
    ----------
    prepared
        The run whose model is fitted again.
    directory
        Where the run is stored, if it is.
    executor
        Where the fits run, as for `zoo.infer.tasks.run_tasks`. By default in processes, as many as
        have the cores they need.
    progress_bar
        Whether a bar is shown; by default on a terminal.
    """
    assembly, config = prepared.assembly, prepared.assembly.config
    starts = range(config.start + 1, config.start + config.restarts + 1)
    known = {} if directory is None else _read_outcomes(directory)
    wanted = [start for start in starts if start not in known]

    def keep(index: int, outcome: Outcome) -> None:
        known[wanted[index]] = outcome
        if directory is not None:
            _write_outcomes(directory, known.values())
            directory.remove(_checkpoint(wanted[index]))

    tasks = [
        partial(
            fit_start,
            config.model_copy(update={"start": start, "restarts": 0}),
            prepared.source,
            prepared.net,
            assembly.entry.builder.__module__,
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
    """Fit one start and return what is kept of it; a task that can be sent to another process.

    Parameters
    ----------
    config
        The configuration, with its start.
    dataset
        The data, those for early stopping among them.
    net
        The network, if it is an object.
    module
        Where the method registers itself.
    folder
        Where checkpoints are written, if it exists on this machine.
    report
        Told the number of steps done.
    """
    from zoo.workflow import finished_fit, prepare, threads  # which imports this module

    importlib.import_module(module)
    directory = RunDirectory(folder) if folder is not None and folder.is_dir() else None
    name = _checkpoint(config.start)

    def save(svi: SVI) -> None:
        if directory is not None:
            directory.write_tensors(name, *svi.state())

    prepared = prepare(config, dataset=dataset, net=net)
    if directory is not None and (directory.path / name).exists():
        prepared.svi.load_state(*directory.read_tensors(name))
    with threads(config.num_threads):
        try:
            losses = prepared.svi.run(
                progress_bar=False,
                checkpoint_every=config.checkpoint_every,
                on_checkpoint=save,
                on_step=report,
            )
        except DivergedError:
            nothing = np.empty(0)
            return Outcome(config.start, math.nan, math.nan, nothing, nothing, nothing)
        return outcome_of(finished_fit(prepared, losses), prepared.dataset)


def remove_restart_files(directory: RunDirectory) -> None:
    """Remove what an unfinished run keeps of its restarts."""
    directory.remove(RESTARTS)
    for path in directory.path.glob(_checkpoint("*")):
        directory.remove(path.name)


def _checkpoint(start: int | str) -> str:
    return f"checkpoint.start_{start}.safetensors"


def _choose_executor(
    executor: Executor | str | None, assembly: Assembly, net: nn.Module | None
) -> Executor | str:
    """Return where restarts run: in this process if they could not be sent, or use all of it."""
    sendable = _can_be_sent(net) and assembly.entry.builder.__module__ != "__main__"
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


def _write_outcomes(directory: RunDirectory, outcomes: Iterable[Outcome]) -> None:
    outcomes = list(outcomes)
    tensors = {
        f"{outcome.start}.{name}": torch.from_numpy(getattr(outcome, name))
        for outcome in outcomes
        for name in ARRAYS
    }
    numbers = {f"{outcome.start}.elbo": outcome.elbo for outcome in outcomes}
    numbers |= {f"{outcome.start}.elbo_error": outcome.elbo_error for outcome in outcomes}
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
