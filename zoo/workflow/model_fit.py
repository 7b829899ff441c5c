"""`zoo.fit` and `zoo.load` of a Pyro model that is not a network, and what its fit can do."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import xarray

from zoo.errors import ConfigError
from zoo.fit.any_model import (
    FittedModel,
    ModelConfig,
    prepare_model,
    read_fitted_model,
    read_model_config,
    train_model,
    write_fitted_model,
    write_model_config,
)
from zoo.fit.config import validated_config
from zoo.fit.guides import GuideSource, guide_text
from zoo.fit.model_tree import model_tree
from zoo.fit.store import RunDirectory
from zoo.fit.stored import load_checkpoint
from zoo.infer.svi.loop import SVI
from zoo.truth.of_fit import truth_of_model
from zoo.workflow.judged import Judged
from zoo.workflow.outputs import budget_of, write_results


class ModelFit(Judged, FittedModel):
    """The fitted posterior of a Pyro model, with its diagnostics, truth and report."""

    @classmethod
    def of(cls, fitted: FittedModel, **changed: Any) -> "ModelFit":
        """Return a fitted model as a `ModelFit`."""
        values = {field.name: getattr(fitted, field.name) for field in fields(FittedModel)}
        return cls(**(values | changed))

    @cached_property
    def _tree(self) -> xarray.DataTree:
        return model_tree(self)

    def tree(self) -> xarray.DataTree:
        """Return draws, densities and predictions in ArviZ's schema."""
        return self._tree

    def truth(self, **options: Any) -> xarray.DataTree:
        """Sample the same model by NUTS.

        Options are those of `zoo.truth`. Draws that do not meet its criteria raise a `TruthError`.
        """
        return truth_of_model(self, **options)


def fit_model(
    model: Callable[..., Any],
    *,
    guide: GuideSource | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    truth: bool | float = False,
    progress_bar: bool | None = None,
    **settings: Any,
) -> ModelFit:
    """Fit a Pyro model that is not a network.

    Parameters
    ----------
    model
        Any Pyro model with continuous latent sites; local ones and subsampled plates are allowed.
    guide
        ``"mean_field"`` (the default), ``"full_rank"``, a class of `pyro.infer.autoguide` or its
        text, a guide object, or a function.
    args, kwargs
        Arguments of the model, the observations among them.
    full_kwargs
        Values of named arguments with which a model that subsamples runs on all of its data;
        densities and predictions are computed with them.
    out
        Directory to write checkpoints, posterior, findings and report to.
    resume
        Directory of an interrupted run to continue from its last checkpoint. Pass the same model,
        arguments and guide object; all settings are those of the run.
    truth
        Also sample the model by NUTS and compare, for the report that is written. A number is the
        budget in seconds.
    progress_bar
        By default one is shown on a terminal.
    **settings
        ``num_steps``, ``lr``, ``schedule``, ``init_scale``, ``grad_clip``, ``num_particles``,
        ``num_samples``, ``seed``, ``compile`` and ``checkpoint_every``, as in
        `zoo.fit.any_model.ModelConfig`.

    Examples
    --------
    >>> import pyro, pyro.distributions as dist, torch, zoo
    >>> def model(y):
    ...     mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> fitted = zoo.fit(model, args=(torch.ones(20),), num_steps=50, num_samples=20)
    >>> fitted.draws["mu"].shape
    torch.Size([20])
    """
    data: dict[str, Any] = {"args": args, "kwargs": kwargs, "full_kwargs": full_kwargs}
    budget_of(truth)  # refused before the training
    if resume is not None:
        if out is not None or settings:
            names = ", ".join([*settings, *(["out"] if out is not None else [])])
            raise ConfigError(f"resume= repeats the stored settings; it does not take {names}.")
        directory = RunDirectory(resume)
        directory.require_unfinished()
        prepared, svi = prepare_model(model, read_model_config(directory), guide=guide, **data)
        directory.remove_leftovers()
        load_checkpoint(directory, svi)
        return _stored(prepared, svi, directory, truth=truth, progress_bar=progress_bar)
    guide = "mean_field" if guide is None else guide
    name = getattr(model, "__name__", type(model).__name__)
    given = {"model": name, "guide": guide_text(guide)}
    config = validated_config(ModelConfig, {**given, **settings})
    prepared, svi = prepare_model(model, config, guide=guide, **data)
    if out is None:
        return ModelFit.of(train_model(prepared, svi, progress_bar=progress_bar))
    directory = RunDirectory.new(out)
    write_model_config(prepared, directory)
    return _stored(prepared, svi, directory, truth=truth, progress_bar=progress_bar)


def load_model(
    directory: RunDirectory,
    model: Callable[..., Any] | None,
    *,
    guide: GuideSource | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
) -> ModelFit:
    """Load a finished run of a Pyro model, see `zoo.load`."""
    directory.require_complete()
    config = read_model_config(directory)
    if model is None:
        raise ConfigError(
            f"the run in {str(directory.path)!r} is a fit of the Pyro model {config.model!r}, "
            "which is not stored: pass it as model=, with its args= and kwargs=."
        )
    prepared, _ = prepare_model(
        model, config, guide=guide, args=args, kwargs=kwargs, full_kwargs=full_kwargs
    )
    return ModelFit.of(read_fitted_model(prepared, directory))


def _stored(
    prepared: FittedModel,
    svi: SVI,
    directory: RunDirectory,
    *,
    truth: bool | float,
    progress_bar: bool | None,
) -> ModelFit:
    """Train to the end and write all results."""
    with directory.locked():
        trained = train_model(prepared, svi, directory, progress_bar)
        fitted = ModelFit.of(trained, path=directory.path)
        write_fitted_model(fitted, directory)
        metrics = json.loads(fitted.tree().attrs["metrics"])
        how: dict[str, Any] = {"progress_bar": progress_bar, **budget_of(truth)}
        sample = partial(fitted.truth, **how) if truth else None
        write_results(directory, fitted.tree(), fitted.summary(), metrics, sample)
    return fitted
