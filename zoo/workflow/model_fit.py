"""`zoo.fit` of a Pyro model that is no network, and what its fit can do."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import xarray
import yaml

from zoo.diagnostics import Finding, Verdict, diagnose, refused_truth, to_json, verdict
from zoo.errors import TruthError, ZooError
from zoo.fit import store
from zoo.fit.any_model import FittedModel, train_model
from zoo.fit.guides import GuideSource
from zoo.fit.model_tree import model_tree
from zoo.fit.schema import write_tree
from zoo.fit.store import RunDirectory
from zoo.infer.recording import Mode
from zoo.registry import Recipe
from zoo.report import render_report
from zoo.truth.of_fit import truth_of_model


class ModelFit(FittedModel):
    """The fitted posterior of a Pyro model: it can be judged, compared with NUTS, and reported."""

    @classmethod
    def of(cls, fitted: FittedModel, **changed: Any) -> "ModelFit":
        """Return a fitted model with everything that can be done to it."""
        values = {field.name: getattr(fitted, field.name) for field in fields(FittedModel)}
        return cls(**(values | changed))

    @cached_property
    def _tree(self) -> xarray.DataTree:
        return model_tree(self)

    def tree(self) -> xarray.DataTree:
        """Return everything that is known of the fit, in ArviZ's schema."""
        return self._tree

    def truth(self, **options: Any) -> xarray.DataTree:
        """Sample the same model by NUTS.

        Parameters
        ----------
        **options
            As for `zoo.truth`.

        Raises
        ------
        TruthError
            If the draws do not meet the criteria of a truth.
        """
        return truth_of_model(self, **options)

    def findings(self, truth: xarray.DataTree | None = None) -> list[Finding]:
        """Judge the fit; with a truth, also by its distance from it."""
        missing = json.loads(self.tree().attrs["left_out"])
        notes = [
            Finding(f"model.left_out_{number}", "info", None, None, message)
            for number, message in enumerate(missing, start=1)
        ]
        return [*diagnose(self.tree(), truth), *notes]

    def verdict(self, truth: xarray.DataTree | None = None) -> Verdict:
        """Return the worst level among the findings, with a sentence."""
        return verdict(self.findings(truth))

    def report(self, path: str | Path, truth: xarray.DataTree | None = None) -> list[Finding]:
        """Write the report as one HTML page, and return its findings."""
        findings = self.findings(truth)
        page = render_report(self.tree(), truth, findings)
        with store.atomic_path(Path(path)) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="backslashreplace")
        return findings


def fit_model(
    model: Callable[..., Any],
    *,
    guide: GuideSource = "mean_field",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    full_kwargs: Mapping[str, Any] | None = None,
    num_steps: int = 4000,
    lr: float = 0.02,
    schedule: str = "linear",
    init_scale: float = 0.1,
    grad_clip: float | None = None,
    num_particles: int = 1,
    num_samples: int = 1000,
    seed: int = 0,
    compile: Mode = "auto",
    out: str | Path | None = None,
    truth: bool = False,
    progress_bar: bool | None = None,
) -> ModelFit:
    """Fit a Pyro model that is no network.

    Parameters
    ----------
    model
        Any Pyro model with continuous latent sites, local ones and subsampled plates included.
    guide
        ``"mean_field"``, ``"full_rank"``, a class of `pyro.infer.autoguide` or its text, a guide
        object, or a function.
    args, kwargs
        What the model is called with, the observations among them.
    full_kwargs
        Values of named arguments with which a model that subsamples runs on all of its data;
        densities and predictions are computed with them.
    num_steps, lr, schedule, init_scale, grad_clip
        See `zoo.registry.Recipe`.
    num_particles
        Draws per step.
    num_samples
        Posterior draws.
    seed
        Decides everything random.
    compile
        How steps are run, see `zoo.infer.recording`.
    out
        Directory to write posterior, findings and report to.
    truth
        Also sample the model by NUTS and compare, for the report that is written.
    progress_bar
        By default one is shown on a terminal.

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
    recipe = Recipe(
        num_steps=num_steps,
        lr=lr,
        schedule=schedule,  # type: ignore[arg-type]
        kl_warmup=0.0,
        init_scale=init_scale,
        grad_clip=grad_clip,
    )
    directory = None if out is None else RunDirectory.new(out)
    fitted = ModelFit.of(
        train_model(
            model,
            guide=guide,
            args=args,
            kwargs=kwargs,
            full_kwargs=full_kwargs,
            recipe=recipe,
            seed=seed,
            num_particles=num_particles,
            num_samples=num_samples,
            compile=compile,
            progress_bar=progress_bar,
        )
    )
    if directory is not None:
        _write(fitted, directory, truth=truth, progress_bar=progress_bar)
        fitted = replace(fitted, path=directory.path)
    return fitted


def _write(
    fitted: ModelFit, directory: RunDirectory, *, truth: bool, progress_bar: bool | None
) -> None:
    """Write what a finished run holds; the metrics last, because they mark its end."""
    directory.write_text(store.CONFIG, yaml.safe_dump(fitted.settings, sort_keys=False))
    with store.atomic_path(directory.path / store.POSTERIOR) as temporary:
        write_tree(fitted.tree(), temporary)
    directory.write_tensors(store.GUIDE, fitted.guide.state_dict(), {"seconds": fitted.seconds})
    directory.write_text(store.SUMMARY, fitted.summary().to_csv(index_label="site"))
    sampled, extra = None, []
    if truth:
        try:
            sampled = fitted.truth(progress_bar=progress_bar)
            with store.atomic_path(directory.path / store.TRUTH) as temporary:
                write_tree(sampled, temporary)
        except (TruthError, ZooError) as error:
            extra = [refused_truth(str(error))]
    findings = [*fitted.findings(sampled), *extra]
    directory.write_text(store.FINDINGS, to_json(findings))
    directory.write_text(store.REPORT, render_report(fitted.tree(), sampled, findings))
    directory.write_json(store.METRICS, json.loads(fitted.tree().attrs["metrics"]))
