"""`zoo.load`: stored runs come back as fits."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from torch import nn

from zoo.errors import ConfigError
from zoo.fit.any_model import is_model_run
from zoo.fit.guides import GuideSource
from zoo.fit.store import RunDirectory
from zoo.fit.stored import read_fitted
from zoo.workflow.model_fit import ModelFit, load_model
from zoo.workflow.result import Fit


@overload
def load(
    path: str | Path, *, net: nn.Module | None = None, guide: GuideSource | None = None
) -> Fit: ...


@overload
def load(
    path: str | Path,
    *,
    model: Callable[..., Any],
    guide: GuideSource | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
) -> ModelFit: ...


def load(
    path: str | Path,
    *,
    net: nn.Module | None = None,
    guide: GuideSource | None = None,
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
) -> Fit | ModelFit:
    """Load a finished run.

    Parameters
    ----------
    path
        The run directory.
    net
        The network, if the run was made with a network object instead of a text.
    guide
        The guide, if the run was made with a guide object instead of a text.
    model, args, kwargs, full_kwargs
        The Pyro model and its arguments, if the run is a fit of a Pyro model.
    """
    directory = RunDirectory(path)
    if is_model_run(directory):
        return load_model(
            directory, model, guide=guide, args=args, kwargs=kwargs, full_kwargs=full_kwargs
        )
    if model is not None:
        raise ConfigError(
            f"the run in {str(path)!r} is not a fit of a Pyro model: leave out model=."
        )
    return Fit.of(read_fitted(path, net=net, guide=guide))
