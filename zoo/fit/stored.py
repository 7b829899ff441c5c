"""Reading and writing of fitted posteriors."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from zoo.data import Dataset, Schema
from zoo.errors import ConfigError, StoreError
from zoo.fit import store
from zoo.fit.build import assemble
from zoo.fit.config import RunConfig, dump_config, make_config, read_config
from zoo.fit.guides import GuideSource
from zoo.fit.result import Fitted
from zoo.fit.store import RunDirectory
from zoo.infer.svi.loop import SVI

Checkpoint = Callable[[SVI], None]


def read_fitted(
    path: str | Path, *, net: nn.Module | None = None, guide: GuideSource | None = None
) -> Fitted:
    """Read the posterior of a finished run; ``net`` and ``guide`` are as for `zoo.load`."""
    directory = RunDirectory(path)
    directory.require_complete()
    config = network_config(directory)
    schema = Schema.from_dict(directory.read_json(store.DATA))
    tensors, numbers = directory.read_tensors(store.GUIDE)
    try:
        losses, num_data, seconds = tensors["losses"], numbers["num_data"], numbers["seconds"]
    except KeyError as error:
        raise StoreError(f"{str(directory.path / store.GUIDE)!r} lacks {error}.") from None
    assembly = assemble(config, schema, num_data=int(num_data), net=net, guide=guide)
    load_states(directory, tensors, assembly.model, assembly.guide)
    buffers = _under("buffers.", tensors)
    return Fitted(assembly, schema, losses, seconds, directory.path, buffers=buffers)


def network_config(directory: RunDirectory) -> RunConfig:
    """Return the configuration of a run that is not a fit of a Pyro model."""
    values = read_config(directory.path / store.CONFIG)
    if "method" not in values and "model" in values:
        raise ConfigError(
            f"the run in {str(directory.path)!r} is a fit of the Pyro model {values['model']!r}. "
            f"Pass the model with its arguments: zoo.load(path, model=..., args=...), or "
            "zoo.fit(model, args=..., resume=path) if it was interrupted."
        )
    return make_config(**values)


def write_inputs(directory: RunDirectory, config: RunConfig, dataset: Dataset) -> None:
    """Write configuration and schema, with which a run can be repeated or resumed."""
    directory.write_json(store.DATA, dataset.schema.to_dict())
    directory.write_text(store.CONFIG, dump_config(config))


def write_fitted(fitted: Fitted, directory: RunDirectory) -> None:
    """Write the tensors of model and guide, and the losses."""
    assembly = fitted.assembly
    directory.write_tensors(
        store.GUIDE,
        states(assembly.model, assembly.guide)
        | {f"buffers.{name}": value for name, value in fitted.buffers.items()}
        | {"losses": fitted.losses},
        {"num_data": assembly.model.num_data, "seconds": fitted.seconds},
    )


def states(model: nn.Module, guide: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model and its guide, for `load_states`."""
    parts = {"model": model.state_dict(), "guide": guide.state_dict()}
    return {f"{part}.{k}": v for part, state in parts.items() for k, v in state.items()}


def load_states(
    directory: RunDirectory, tensors: Mapping[str, Tensor], model: nn.Module, guide: nn.Module
) -> None:
    """Load stored tensors into a model and its guide."""
    for part, module in (("model.", model), ("guide.", guide)):
        with _fitting(directory, store.GUIDE):
            _load(module, _under(part, tensors))


def checkpoints(directory: RunDirectory | None, name: str = store.CHECKPOINT) -> Checkpoint:
    """Return the function that writes checkpoints of a training loop, if there is a directory."""

    def write(svi: SVI) -> None:
        if directory is not None:
            directory.write_tensors(name, *svi.state())

    return write


def load_checkpoint(directory: RunDirectory, svi: SVI, name: str = store.CHECKPOINT) -> None:
    """Continue from the last checkpoint, if there is one."""
    if (directory.path / name).exists():
        state = directory.read_tensors(name)
        with _fitting(directory, name):
            svi.load_state(*state)


@contextmanager
def _fitting(directory: RunDirectory, name: str) -> Iterator[None]:
    """Explain tensors that do not fit the model of the configuration."""
    try:
        yield
    except (KeyError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{str(directory.path / name)!r} does not fit its configuration: "
            f"{' '.join(str(error).split())[:200]}"
        ) from None


#: Constants of priors that earlier versions stored, and buffers that they did not have.
_CONSTANTS = {
    *("zero", "one", "one_half", "global_rate", "low", "high", "temperature", "logits"),
    *("concentration", "loc", "scale", "prior_low", "prior_high"),
}
_NEW = {"complexity.chosen"}


def _load(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state of this version, or of an earlier one."""
    known = module.state_dict()
    for key in [key for key in state if key not in known]:
        if key.startswith("programs.") and key.rpartition(".")[2] in _CONSTANTS:
            del state[key]
    missing = {key: known[key] for key in _NEW if key in known and key not in state}
    module.load_state_dict(state | missing)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
