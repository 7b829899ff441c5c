"""``zoo fit``: from a configuration to a run directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.cli.config_flags import flag_name, flags_of, given_values, section
from zoo.cli.exits import INTERRUPTED, judge
from zoo.cli.flags import Executor, ForUse, Quiet, Robustness
from zoo.errors import ConfigError
from zoo.fit.config import RunConfig, make_config, read_config

#: Fields that determine the training rows: the data, and the seed of the split.
DATA_FIELDS = {"seed"} | {n for n, f in RunConfig.model_fields.items() if section(f) == "Data"}


@flags_of(RunConfig)
def fit(
    *,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of the above; flags take precedence.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; the next number under runs/ by default.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue an interrupted run from its checkpoint.")
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Also compare the fit with NUTS; for small problems.")
    ] = False,
    truth_seconds: Annotated[
        float | None,
        typer.Option(min=1.0, help="Seconds for the truth, 120 by default; implies --truth."),
    ] = None,
    robustness: Robustness = False,
    use: ForUse = None,
    executor: Executor = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Fit a method and write a run directory.

    The directory holds the posterior, the findings of the diagnostics and a report. Exit code 3:
    the fit finished, but a finding says that it must not be used yet.
    """
    flags = given_values(RunConfig, settings)
    if resume is not None and (flags or config or out):
        names = [flag_name(name, RunConfig.model_fields[name]) for name in flags]
        raise ConfigError(
            "--resume repeats the stored configuration; it does not take "
            f"{', '.join(names) or '--config or --out'}."
        )
    if use is not None:
        from zoo.diagnostics.verdict import check_use

        check_use(use)
    if executor is not None:
        from zoo.infer.tasks.executor import check_executor

        check_executor(executor)
    how: dict[str, Any] = {
        "truth": truth_seconds or truth,
        "robustness": robustness,
        "executor": executor,
        "progress_bar": False if quiet else None,
    }
    if resume is None:
        return _fit_new(flags, config, out, how, use)

    from zoo.fit.store import RunDirectory
    from zoo.workflow import fitting

    with _interruptible(resume):
        _print_results(fitting.resume(RunDirectory(resume), **how), use)


def _fit_new(
    flags: dict[str, Any],
    config: Path | None,
    out: Path | None,
    how: dict[str, Any],
    use: str | None,
) -> None:
    values = read_config(config) if config else {}
    if DATA_FIELDS & flags.keys():  # the checksum is that of other rows or another split
        values.pop("data_sha256", None)
    values = merged(values, flags)
    if "method" not in values or "data" not in values:
        raise ConfigError("name a method and data, for example: zoo fit mean_field --data digits")
    checked = make_config(**values)

    from zoo.fit.prepare import prepare
    from zoo.fit.store import RunDirectory
    from zoo.workflow.fitting import run

    prepared = prepare(checked)
    directory = RunDirectory.new(out)
    with _interruptible(directory.path):
        _print_results(run(prepared, directory, **how), use)


def merged(values: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Merge flags into the values of a file, recursively; flags take precedence."""
    joined = {
        name: merged(values[name], flag)
        for name, flag in flags.items()
        if isinstance(flag, dict) and isinstance(values.get(name), dict)
    }
    return values | flags | joined


@contextmanager
def _interruptible(path: Path) -> Iterator[None]:
    """Explain how to continue after Ctrl-C; typer would swallow the exception."""
    from zoo.fit.store import CHECKPOINT

    try:
        yield
    except KeyboardInterrupt:
        saved = (path / CHECKPOINT).exists()
        what = "the checkpoint is saved" if saved else "there is no checkpoint yet"
        typer.echo(f"zoo: interrupted; {what}. Continue with: zoo fit --resume {path}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _print_results(fitted: Any, use: str | None) -> None:
    from zoo.diagnostics.finding import format_estimate
    from zoo.fit.store import METRICS, REPORT, RunDirectory
    from zoo.workflow.outputs import read_judgement

    metrics = RunDirectory(fitted.path).read_json(METRICS)
    width = max(map(len, metrics))
    for name, value in metrics.items():
        error = metrics.get(f"{name}_error")
        if name.endswith("_error") and name.removesuffix("_error") in metrics:
            continue  # printed with its value
        text = f"{value:.6g}" if error is None else format_estimate(value, error)
        typer.echo(f"{name:{width}}  {text}")
    typer.echo(f"run     {fitted.path}")
    typer.echo(f"report  {fitted.path / REPORT}")
    judge(read_judgement(RunDirectory(fitted.path)).on(use))
