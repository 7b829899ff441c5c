"""Fitted posteriors on disk: what is needed to predict again, written and read."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from zoo.data import Dataset, Schema
from zoo.errors import StoreError
from zoo.fit import store
from zoo.fit.build import assemble
from zoo.fit.config import RunConfig, dump_config, make_config, read_config
from zoo.fit.guides import GuideSource
from zoo.fit.result import Fitted
from zoo.fit.store import RunDirectory


def read_fitted(
    path: str | Path, *, net: nn.Module | None = None, guide: GuideSource | None = None
) -> Fitted:
    """Read the posterior of a finished run.

    Parameters
    ----------
    path
        The run directory.
    net
        The network, if the run was made with a network object instead of a text.
    guide
        The guide, if the run was made with a guide object instead of a text.
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
    assembly = assemble(config, schema, num_data=int(num_data), net=net, guide=guide)
    for part, module in (("model.", assembly.model), ("guide.", assembly.guide)):
        try:
            _load(module, _under(part, tensors))
        except RuntimeError as error:
            raise StoreError(
                f"{str(directory.path / store.GUIDE)!r} does not fit its configuration: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None
    buffers = _under("buffers.", tensors)
    return Fitted(assembly, schema, losses, seconds, directory.path, buffers=buffers)


def write_inputs(directory: RunDirectory, config: RunConfig, dataset: Dataset) -> None:
    """Write what a run needs to be repeated or resumed."""
    directory.write_json(store.DATA, dataset.schema.to_dict())
    directory.write_text(store.CONFIG, dump_config(config))


def write_fitted(fitted: Fitted, directory: RunDirectory) -> None:
    """Write the tensors of model and guide, and the losses."""
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


#: Numbers of priors that earlier versions stored although they follow from the configuration, and
#: buffers that earlier versions did not have.
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
