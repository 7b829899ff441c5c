"""Preparation of a run: data, model, guide and training loop."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from guides.lazy import LazyReuseError
from zoo.data import Dataset, checksum
from zoo.data import load as load_data
from zoo.errors import ConfigError
from zoo.fit.build import Assembly, assemble, start_seed
from zoo.fit.config import RunConfig
from zoo.fit.guides import GuideSource
from zoo.fit.result import Fitted, training_tensors
from zoo.fit.start import guide_functions
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.svi.batches import Batches
from zoo.infer.svi.loop import SVI, EarlyStopping
from zoo.infer.svi.objective import Objective
from zoo.infer.svi.schedule import child_seed

VALIDATION_STREAM = 2_000_000_099
#: Smallest number of steps between evaluations; on small data an epoch is too short.
EVALUATE_EVERY = 50


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to train, checked and not yet written.

    `source` has all training rows, `dataset` is without those held out for early stopping. `net` is
    the network if it was given as an object. `start_outputs` are outputs of the untrained guide.
    """

    assembly: Assembly
    svi: SVI
    dataset: Dataset
    source: Dataset
    net: nn.Module | None
    start_outputs: Tensor | None = None


def prepare(
    config: RunConfig,
    *,
    dataset: Dataset | None = None,
    net: nn.Module | None = None,
    guide: GuideSource | None = None,
) -> Prepared:
    """Load the data and build model, guide and training loop."""
    dataset = dataset or _load_dataset(config)
    config = config.model_copy(update={"data_sha256": checksum(dataset)})
    train, held_out = _split_validation(config, len(dataset.X_train))
    assembly = assemble(config, dataset.schema, num_data=len(train), net=net, guide=guide)
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
    kept = _keep_rows(dataset, train)
    return Prepared(assembly, svi, kept, dataset, net, guide_functions(assembly, kept))


def choose_estimator(
    wanted: str, assembly: Assembly, x: Tensor, y: Tensor
) -> Literal["local", "weights"]:
    """Choose whether a step samples the outputs of layers or their weights.

    Outputs give gradients of lower variance, but take twice the time in convolutions, where only
    some priors need them. Networks that use a weight twice need samples of the weights.
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
    """Return the data of a run, and the training rows held out for early stopping, if any."""
    dataset = dataset or _load_dataset(config)
    train, held_out = _split_validation(config, len(dataset.X_train))
    return _keep_rows(dataset, train), _keep_rows(dataset, held_out) if len(held_out) else None


def _check_last_batch(net: nn.Module, x: Tensor, batch_size: int) -> None:
    """Check that the network can train on the last batch: normalisation needs two rows.

    Otherwise the error occurs at the end of the first epoch.
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


def finished_fit(prepared: Prepared, losses: Tensor) -> Fitted:
    """Return the fit after training."""
    assembly, svi, dataset = prepared.assembly, prepared.svi, prepared.dataset
    fitted = Fitted(
        assembly,
        dataset.schema,
        losses,
        svi.progress.seconds,
        dataset=dataset,
        gradient_norms=svi.gradient_norms(),
        ending=svi.ending,
        start_outputs=prepared.start_outputs,
    )
    assert isinstance(svi.batches, Batches)
    buffers = statistics_of_draws(assembly.model, fitted.draws.slots, svi.batches.x)
    return replace(fitted, buffers=buffers)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of threads, on which the last bits of sums depend."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
