"""`zoo.fit`: fitting, with diagnostics and report."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, overload

from torch import nn

from zoo.data import Dataset, from_arrays
from zoo.errors import ConfigError
from zoo.fit.config import make_config
from zoo.fit.guides import GuideSource, guide_text
from zoo.fit.prepare import Prepared, prepare, threads
from zoo.fit.run import begin, continued, train
from zoo.fit.store import RunDirectory
from zoo.infer.tasks.executor import check_executor
from zoo.workflow.model_fit import ModelFit, fit_model
from zoo.workflow.outputs import budget_of, write_outputs
from zoo.workflow.result import Fit


@overload
def fit(method: str, X: Any = None, y: Any = None, **options: Any) -> Fit: ...


@overload
def fit(method: Callable[..., Any], **options: Any) -> ModelFit: ...


def fit(
    method: str | Callable[..., Any], X: Any = None, y: Any = None, **options: Any
) -> Fit | ModelFit:
    """Fit a method of the zoo to a network, or a guide to any Pyro model.

    Parameters
    ----------
    method
        The name of a method, see `zoo.list_models`; or a Pyro model.
    X, y
        Arrays to train on; or else ``data=``. A Pyro model takes ``args=`` and ``kwargs=``.
    **options
        As for `fit_method` and, for a Pyro model, `zoo.workflow.model_fit.fit_model`.

    Examples
    --------
    >>> import zoo
    >>> fitted = zoo.fit("mean_field", data="diabetes", num_steps=20, num_samples=10)
    >>> fitted.losses.shape
    torch.Size([20])
    """
    if isinstance(method, str):
        return fit_method(method, X, y, **options)
    if X is not None or y is not None:
        raise ConfigError("a Pyro model takes its data as args= and kwargs=, not as X and y.")
    return fit_model(method, **options)


def fit_method(
    method: str,
    X: Any = None,
    y: Any = None,
    *,
    data: str | Dataset | None = None,
    net: str | Mapping[str, Any] | nn.Module = "mlp",
    guide: GuideSource = "factorised",
    out: str | Path | None = None,
    truth: bool | float = False,
    robustness: bool = False,
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
    **options: Any,
) -> Fit:
    """Fit a method of the zoo to a network.

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
    guide
        ``factorised`` follows the priors, ``full_rank`` is one Normal over all sites. Or any Pyro
        guide: a class of `pyro.infer.autoguide` or its text, such as
        ``"AutoLowRankMultivariateNormal(rank=5)"``, a guide object, or a function.
    out
        Directory to write the run to; nothing is written when None.
    truth
        Also sample the posterior by NUTS, and compare the fit with it in the report in ``out``; see
        `Fit.truth`. For small problems. A number is its budget in seconds.
    robustness
        Also score the fit under noise, attacks and deletion of weights, for the report in ``out``;
        see `Fit.robustness`.
    executor
        Where restarts and the chains of the truth run, see
        `zoo.infer.tasks.executor.make_executor`.
    progress_bar
        By default one is shown on a terminal.
    **options
        Every other field of `zoo.fit.config.RunConfig`: ``priors``, ``likelihood``, ``seed``,
        ``restarts``, ...
    """
    if (X is None) == (data is None) or (X is None) != (y is None):
        raise ConfigError("give either X and y, or data=.")
    if isinstance(executor, str):
        check_executor(executor)
    config = make_config(
        method=method,
        data=data if isinstance(data, str) else None,
        net=None if isinstance(net, nn.Module) else net,
        guide=guide_text(guide),
        **options,
    )
    if X is not None:
        data = from_arrays(X, y, task=config.task)
    prepared = prepare(
        config,
        dataset=data if isinstance(data, Dataset) else None,
        net=net if isinstance(net, nn.Module) else None,
        guide=None if isinstance(guide, str) else guide,
    )
    budget_of(truth)  # refused before the training
    directory = None if out is None else RunDirectory.new(out)
    how: dict[str, Any] = {"truth": truth, "robustness": robustness}
    return run(prepared, directory, **how, executor=executor, progress_bar=progress_bar)


def run(prepared: Prepared, directory: RunDirectory | None = None, **how: Any) -> Fit:
    """Train from the start; if a directory is given, write findings and all results to it.

    ``how`` holds ``truth``, ``robustness``, ``executor`` and ``progress_bar`` of `fit_method`.
    """
    return _finish(begin(prepared, directory), directory, **how)


def resume(directory: RunDirectory, *, net: nn.Module | None = None, **how: Any) -> Fit:
    """Continue an interrupted run from its last checkpoint; the result is the same to the bit."""
    return _finish(continued(directory, net=net), directory, **how)


def _finish(
    prepared: Prepared,
    directory: RunDirectory | None,
    *,
    truth: bool | float = False,
    robustness: bool = False,
    **where: Any,
) -> Fit:
    """Train to the end and write the results."""
    if directory is None:
        return Fit.of(train(prepared, **where))
    with directory.locked():
        fitted = train(prepared, directory, **where)
        with threads(fitted.config.num_threads):
            sampling = {**where, **budget_of(truth)} if truth else None
            write_outputs(fitted, directory, prepared.dataset, sampling, robustness=robustness)
    return Fit.of(fitted, path=directory.path)
