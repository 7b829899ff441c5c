"""The way from a configuration to a stored run."""

import copy
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import xarray
from torch import Tensor, nn

from guides.lazy import LazyReuseError
from zoo import store
from zoo.assemble import Assembly, assemble, start_seed
from zoo.config import RunConfig, make_config, read_config
from zoo.data import Dataset, checksum, from_arrays
from zoo.data import load as load_data
from zoo.diagnostics.robustness import GROUP as ROBUSTNESS
from zoo.errors import ConfigError, StoreError
from zoo.fitted import Fit, training_tensors
from zoo.infer.executor import check_executor
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.objective import Objective
from zoo.infer.schedule import child_seed
from zoo.infer.svi import SVI, EarlyStopping
from zoo.persist import load, write_inputs, write_outputs
from zoo.restarts import run_restarts
from zoo.store import RunDirectory
from zoo.tree import read_tree, write_tree

VALIDATION_STREAM = 2_000_000_099
#: Fewest steps between two looks at the held-out rows; on small data an epoch is too short.
EVALUATE_EVERY = 50


def fit(
    method: str,
    X: Any = None,
    y: Any = None,
    *,
    data: str | Dataset | None = None,
    net: str | Mapping[str, Any] | nn.Module = "mlp",
    out: str | Path | None = None,
    truth: bool = False,
    robustness: bool = False,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
    **options: Any,
) -> Fit:
    """Fit a method of the zoo.

    Parameters
    ----------
    method
        See `zoo.list_models`.
    X, y
        Arrays to train on, used as they are; or else ``data``.
    data
        Name of a data set, path of a table, or a `zoo.data.Dataset`.
    net
        Text such as ``"mlp:64-100-10"``, the mapping of a graph, or any torch network.
    out
        Directory to write the run to; nothing is written when None.
    truth
        Also sample the posterior by NUTS and hold the fit against it, for small problems that are
        written to a directory; a fit in memory has `Fit.truth`.
    robustness
        Also score the fit under noise, attacks and deletion of weights, for the report of a fit
        that is written to a directory; a fit in memory has `Fit.robustness`.
    executor
        Where restarts and the chains of the truth run, see `zoo.infer.executor.make_executor`.
    progress_bar
        By default one is shown on a terminal.
    **options
        Every other field of `zoo.config.RunConfig`: ``priors``, ``likelihood``, ``seed``,
        ``restarts``, ...

    Examples
    --------
    >>> import zoo
    >>> fitted = zoo.fit("mean_field", data="diabetes", num_steps=20, num_samples=10)
    >>> fitted.losses.shape
    torch.Size([20])
    """
    if (X is None) == (data is None) or (X is None) != (y is None):
        raise ConfigError("give either X and y, or data=.")
    if isinstance(executor, str):
        check_executor(executor)
    config = make_config(
        method=method,
        data=data if isinstance(data, str) else None,
        net=None if isinstance(net, nn.Module) else net,
        **options,
    )
    if X is not None:
        data = from_arrays(X, y, task=config.task)
    prepared = prepare(
        config,
        dataset=data if isinstance(data, Dataset) else None,
        net=net if isinstance(net, nn.Module) else None,
    )
    directory = None if out is None else RunDirectory.new(out)
    return run(
        prepared,
        directory,
        truth=truth,
        robustness=robustness,
        executor=executor,
        progress_bar=progress_bar,
    )


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to train: everything has been checked, nothing has been written.

    The training part of `dataset` is what the model sees, without rows held out for early stopping;
    `source` has these too. `net` is the network, if it was given as an object.
    """

    assembly: Assembly
    svi: SVI
    dataset: Dataset
    source: Dataset
    net: nn.Module | None


def prepare(
    config: RunConfig, *, dataset: Dataset | None = None, net: nn.Module | None = None
) -> Prepared:
    """Load the data and build model, guide and training loop."""
    dataset = dataset or _load_dataset(config)
    config = config.model_copy(update={"data_sha256": checksum(dataset)})
    train, held_out = _split_validation(config, len(dataset.X_train))
    assembly = assemble(config, dataset.schema, num_data=len(train), net=net)
    x, y = training_tensors(assembly, dataset)
    recipe = assembly.config.recipe(assembly.entry)
    _check_last_batch(assembly.model.net, x[train], recipe.batch_size)
    stopping = None
    if len(held_out):
        stopping = EarlyStopping(
            x[held_out],
            y[held_out],
            patience=config.patience,
            every=max(EVALUATE_EVERY, math.ceil(len(train) / recipe.batch_size)),
        )
    device = assembly.config.device
    few = x[:2].to(device), y[:2].to(device)
    estimator = choose_estimator(assembly.config.estimator, assembly, *few)
    assembly = replace(assembly, config=assembly.config.model_copy(update={"estimator": estimator}))
    svi = SVI(
        assembly.model,
        assembly.guide,
        x[train],
        y[train],
        recipe=recipe,
        seed=start_seed(config),
        num_particles=config.num_particles,
        local=estimator == "local",
        mode=config.compile,
        early_stopping=stopping,
    )
    return Prepared(assembly, svi, _keep_rows(dataset, train), dataset, net)


def run(
    prepared: Prepared,
    directory: RunDirectory | None = None,
    *,
    truth: bool = False,
    robustness: bool = False,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
) -> Fit:
    """Train from the start, and store the run if a directory is given."""
    prepared = _with_mode(prepared)
    if directory is not None:
        write_inputs(directory, prepared.assembly.config, prepared.dataset)
    return _train(prepared, directory, progress_bar, truth, robustness, executor)


def _with_mode(prepared: Prepared) -> Prepared:
    """Decide whether the steps of a run are compiled; the decision becomes part of it."""
    assembly, svi = prepared.assembly, prepared.svi
    if assembly.config.compile != "auto":
        return prepared
    with threads(assembly.config.num_threads):
        svi.choose_mode()
    config = assembly.config.model_copy(update={"compile": svi.mode})
    return replace(prepared, assembly=replace(assembly, config=config))


def resume(
    directory: RunDirectory,
    *,
    net: nn.Module | None = None,
    truth: bool = False,
    robustness: bool = False,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
) -> Fit:
    """Continue an interrupted run from its last checkpoint, to the same bits as without a break."""
    if directory.is_complete:
        raise StoreError(f"the run in {str(directory.path)!r} is finished: nothing to resume.")
    directory.require_config()
    prepared = prepare(make_config(**read_config(directory.path / store.CONFIG)), net=net)
    directory.remove_leftovers()
    if (directory.path / store.CHECKPOINT).exists():
        try:
            prepared.svi.load_state(*directory.read_tensors(store.CHECKPOINT))
        except (KeyError, ValueError, RuntimeError) as error:
            raise StoreError(
                f"the checkpoint in {str(directory.path)!r} does not fit its configuration: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None
    return _train(prepared, directory, progress_bar, truth, robustness, executor)


def choose_estimator(
    wanted: str, assembly: Assembly, x: Tensor, y: Tensor
) -> Literal["local", "weights"]:
    """Decide what a step samples: the outputs of layers, or their weights.

    Outputs give gradients of lower variance; on convolutions they cost twice the time, so there
    they are for priors that need it. A network that uses a weight twice needs the weights
    themselves.
    """
    model = assembly.model
    is_cheap = model.has_random_convolutions and not model.has_noisy_convolutions
    if wanted == "weights" or (wanted == "auto" and is_cheap):
        return "weights"
    try:
        with torch.no_grad(), torch.random.fork_rng():
            Objective(assembly.model.eval(), assembly.guide, local=True, validate=False)(x, y)
    except LazyReuseError as error:
        if wanted == "local":
            raise ConfigError(f"the estimator 'local' cannot be used: {error}") from None
        return "weights"
    return "local"


def _load_dataset(config: RunConfig) -> Dataset:
    if config.data is None:
        raise ConfigError("the configuration names no data: give data=, for example 'digits'.")
    dataset = load_data(
        config.data,
        target=config.target,
        task=config.task,
        missing=config.missing,
        ignore=config.ignore,
        test_fraction=config.test_fraction,
        seed=config.seed,
    )
    if config.data_sha256 not in (None, checksum(dataset)):
        raise ConfigError(
            f"the data {config.data!r} are not those of the configuration: their SHA-256 is "
            f"{checksum(dataset)}, not {config.data_sha256}. Remove data_sha256 to use them anyway."
        )
    return dataset


def _split_validation(config: RunConfig, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return rows to train on and rows held out for early stopping."""
    num_held_out = round(config.validation_fraction * num_rows)
    if 2 * num_held_out > num_rows:
        raise ConfigError(
            f"validation_fraction={config.validation_fraction} holds out {num_held_out} of "
            f"{num_rows} rows; at least half must be left to train on."
        )
    generator = torch.Generator().manual_seed(child_seed(config.seed, VALIDATION_STREAM))
    order = torch.randperm(num_rows, generator=generator)
    return order[num_held_out:].sort().values, order[:num_held_out].sort().values


def run_data(config: RunConfig, dataset: Dataset | None = None) -> tuple[Dataset, Dataset | None]:
    """Return the data of a run, and the training rows that it held out, if any.

    Parameters
    ----------
    config
        The configuration of the run.
    dataset
        The data, if the configuration does not name them.
    """
    dataset = dataset or _load_dataset(config)
    train, held_out = _split_validation(config, len(dataset.X_train))
    return _keep_rows(dataset, train), _keep_rows(dataset, held_out) if len(held_out) else None


def write_robustness(
    directory: RunDirectory,
    *,
    dataset: Dataset | None = None,
    net: nn.Module | None = None,
    **options: Any,
) -> None:
    """Score a finished run under noise and attacks; its tree holds the curves afterwards.

    Parameters
    ----------
    directory
        The run.
    dataset, net
        The data, if the run was made from arrays, and the network, if it was made with an object.
    **options
        As for `zoo.fit_robustness.robustness_of`.
    """
    fitted = load(directory.path, net=net)
    data, _ = run_data(fitted.config, dataset)
    with directory.locked(), threads(fitted.config.num_threads):
        tree = read_tree(directory.path / store.POSTERIOR)
        tree[ROBUSTNESS] = xarray.DataTree(fitted.robustness(data, **options))
        with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
            write_tree(tree, temporary)


def _check_last_batch(net: nn.Module, x: Tensor, batch_size: int) -> None:
    """Refuse a batch size whose last batch the network cannot train on: normalisation needs two.

    Otherwise the error comes at the end of the first epoch.
    """
    num_rows = len(x) % batch_size or min(batch_size, len(x))
    try:
        with torch.no_grad(), torch.random.fork_rng():
            device = next(net.parameters()).device
            copy.deepcopy(net).train()(x[:num_rows].to(device))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the network cannot train on the last batch of an epoch, which has {num_rows} of "
            f"{len(x)} rows: {str(error).splitlines()[0]}. Choose another batch_size than "
            f"{batch_size}."
        ) from None


def _keep_rows(dataset: Dataset, rows: Tensor) -> Dataset:
    """Return a data set with only these training rows."""
    kept = rows.numpy()
    return replace(dataset, X_train=dataset.X_train[kept], y_train=dataset.y_train[kept])


def _train(
    prepared: Prepared,
    directory: RunDirectory | None,
    progress_bar: bool | None,
    truth: bool,
    robustness: bool,
    executor: Executor | str | None,
) -> Fit:
    """Train to the end, with checkpoints if there is a directory, and write the results."""

    def checkpoint(svi: SVI) -> None:
        if directory is not None:
            directory.write_tensors(store.CHECKPOINT, *svi.state())

    config = prepared.assembly.config
    where: dict[str, Any] = {"executor": executor, "progress_bar": progress_bar}
    lock = nullcontext() if directory is None else directory.locked()
    with lock, threads(config.num_threads):
        losses = prepared.svi.run(
            progress_bar=progress_bar,
            checkpoint_every=config.checkpoint_every,
            on_checkpoint=checkpoint,
        )
        restarts = run_restarts(prepared, directory, **where)
        fitted = replace(finished_fit(prepared, losses), restarts=restarts)
        if directory is None:
            return fitted
        return write_outputs(
            fitted,
            directory,
            prepared.dataset,
            where if truth else None,
            robustness=robustness,
        )


def finished_fit(prepared: Prepared, losses: Tensor) -> Fit:
    """Return the fit that training has led to."""
    assembly, svi, dataset = prepared.assembly, prepared.svi, prepared.dataset
    fitted = Fit(
        assembly,
        dataset.schema,
        losses,
        svi.progress.seconds,
        dataset=dataset,
        gradient_norms=svi.gradient_norms(),
    )
    buffers = statistics_of_draws(assembly.model, fitted.draws.slots, svi.batches.x)
    return replace(fitted, buffers=buffers)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Compute with this many threads, which decide the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
