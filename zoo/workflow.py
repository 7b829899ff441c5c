"""The way from a configuration to a stored run, and back."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo import store
from zoo.assemble import Assembly, assemble
from zoo.config import RunConfig, dump_config, make_config, read_config
from zoo.data import Dataset, Schema, checksum, from_arrays
from zoo.data import load as load_data
from zoo.errors import ConfigError, StoreError
from zoo.fitted import Fit, training_tensors
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.schedule import child_seed
from zoo.infer.svi import SVI, EarlyStopping
from zoo.report import render_page
from zoo.store import RunDirectory
from zoo.tree import write_tree

VALIDATION_STREAM = 2_000_000_099


def fit(
    method: str,
    X: Any = None,
    y: Any = None,
    *,
    data: str | Dataset | None = None,
    net: str | nn.Module = "mlp",
    out: str | Path | None = None,
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
        Text such as ``"mlp:64-100-10"``, or any torch network.
    out
        Directory to write the run to; nothing is written when None.
    progress_bar
        By default one is shown on a terminal.
    **options
        Every other field of `zoo.config.RunConfig`: ``priors``, ``likelihood``, ``seed``, ...

    Examples
    --------
    >>> import zoo
    >>> fitted = zoo.fit("mean_field", data="diabetes", num_steps=20, num_samples=10)
    >>> fitted.losses.shape
    torch.Size([20])
    """
    if (X is None) == (data is None) or (X is None) != (y is None):
        raise ConfigError("give either X and y, or data=.")
    config = make_config(
        method=method,
        data=data if isinstance(data, str) else None,
        net=net if isinstance(net, str) else None,
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
    return run(prepared, directory, progress_bar=progress_bar)


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to train: everything has been checked, nothing has been written.

    The training part of `dataset` is what the model sees, without rows held out for early stopping.
    """

    assembly: Assembly
    svi: SVI
    dataset: Dataset


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
            every=max(1, math.ceil(len(train) / recipe.batch_size)),
        )
    svi = SVI(
        assembly.model,
        assembly.guide,
        x[train],
        y[train],
        recipe=recipe,
        seed=config.seed,
        num_particles=config.num_particles,
        early_stopping=stopping,
    )
    return Prepared(assembly, svi, _keep_rows(dataset, train))


def run(
    prepared: Prepared,
    directory: RunDirectory | None = None,
    *,
    progress_bar: bool | None = None,
) -> Fit:
    """Train from the start, and store the run if a directory is given."""
    if directory is not None:
        _write_inputs(directory, prepared.assembly.config, prepared.dataset)
    return _train(prepared, directory, progress_bar)


def resume(
    directory: RunDirectory, *, net: nn.Module | None = None, progress_bar: bool | None = None
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
    return _train(prepared, directory, progress_bar)


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


def save(fitted: Fit, out: str | Path, dataset: Dataset | None = None) -> Fit:
    """Write a fit that was made in memory to a run directory.

    Parameters
    ----------
    fitted
        What `fit` returned.
    out
        The directory; it must not exist, or be empty.
    dataset
        The data, if the fit does not hold them.
    """
    dataset = dataset or fitted.dataset
    if dataset is None:
        raise StoreError(
            f"this fit was loaded from {str(fitted.path)!r} and does not hold its data: "
            "copy that directory, or pass dataset=."
        )
    if len(dataset.X_train) != fitted.assembly.model.num_data:  # rows were held out
        train, _ = _split_validation(fitted.config, len(dataset.X_train))
        dataset = _keep_rows(dataset, train)
    directory = RunDirectory.new(out)
    _write_inputs(directory, fitted.config, dataset)
    return _write_outputs(fitted, directory, dataset)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


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


def _check_last_batch(net: nn.Module, x: Tensor, batch_size: int) -> None:
    """Refuse a batch size whose last batch the network cannot train on: normalisation needs two.

    Otherwise the error comes at the end of the first epoch.
    """
    num_rows = len(x) % batch_size or min(batch_size, len(x))
    try:
        with torch.no_grad(), torch.random.fork_rng():
            copy.deepcopy(net).train()(x[:num_rows])
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


def _train(prepared: Prepared, directory: RunDirectory | None, progress_bar: bool | None) -> Fit:
    """Train to the end, with checkpoints if there is a directory, and write the results."""

    def checkpoint(svi: SVI) -> None:
        if directory is not None:
            directory.write_tensors(store.CHECKPOINT, *svi.state())

    config = prepared.assembly.config
    with _threads(config.num_threads):
        losses = prepared.svi.run(
            progress_bar=progress_bar,
            checkpoint_every=config.checkpoint_every,
            on_checkpoint=checkpoint,
        )
    dataset, seconds = prepared.dataset, prepared.svi.progress.seconds
    fitted = Fit(prepared.assembly, dataset.schema, losses, seconds, dataset=dataset)
    fitted = replace(
        fitted,
        buffers=statistics_of_draws(prepared.assembly.model, fitted.draws.slots, prepared.svi.x),
    )
    return fitted if directory is None else _write_outputs(fitted, directory, dataset)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Compute with this many threads, which decide the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_inputs(directory: RunDirectory, config: RunConfig, dataset: Dataset) -> None:
    directory.write_json(store.DATA, dataset.schema.to_dict())
    directory.write_text(store.CONFIG, dump_config(config))


def _write_outputs(fitted: Fit, directory: RunDirectory, dataset: Dataset) -> Fit:
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
    with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
        write_tree(fitted.tree(dataset), temporary)
    directory.write_json(store.GROUPS, groups.to_dict())
    page = render_page(
        config=fitted.config.model_dump(mode="json"),
        priors={name: str(prior) for name, prior in assembly.model.priors.items()},
        metrics=metrics,
        groups=groups.to_dict(),
        losses=fitted.losses.numpy(),
        summary=assembly.entry.summary,
        reference=assembly.entry.reference,
    )
    directory.write_text(store.REPORT, page)
    directory.write_json(store.METRICS, metrics)
    directory.remove(store.CHECKPOINT)
    return replace(fitted, path=directory.path)
