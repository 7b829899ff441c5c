"""The command line. Heavy imports happen inside the commands, so that help answers at once."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo._version import __version__
from zoo.errors import ConfigError, ZooError

EXIT_BAD_INPUT = 2
#: The command finished, and what it made must not be used: a finding has level ``fail``.
EXIT_NOT_TRUSTED = 3
EXIT_INTERRUPTED = 130
#: Flags of ``zoo fit`` that are not part of a configuration.
FIT_ONLY = {"prior", "config", "out", "resume", "truth", "robustness", "executor", "quiet"}
#: Flags that decide which numbers a run is trained on.
DATA_FLAGS = {"data", "target", "task", "missing", "ignore", "test_fraction", "seed"}

app = typer.Typer(
    name="zoo",
    help="Bayesian deep learning on Pyro: pick a method, swap its priors, fit it, read the report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors on one line, help without boxes
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; mistakes of the user end in one line and exit code 2."""
    with explained_errors():
        app()


@contextmanager
def explained_errors() -> Iterator[None]:
    """Turn an error that input caused into a message and an exit code."""
    try:
        yield
    except ZooError as error:
        typer.echo(f"zoo: error: {' '.join(str(error).split())}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo("zoo: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pyro-zoo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_command(
    pattern: Annotated[str, typer.Argument(help="Wildcard, for example '*horseshoe*'.")] = "*",
    task: Annotated[
        str | None, typer.Option(help="Only methods for this task: regression, ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods of the zoo."""
    from zoo.registry import get, list_models

    entries = [get(name) for name in list_models(pattern, task=task)]
    if as_json:
        rows = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "tasks": list(entry.tasks),
                "priors": dict(entry.priors),
                "compresses": entry.compresses,
                "analytic_kl": entry.analytic_kl,
                "reference": entry.reference,
            }
            for entry in entries
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    if not entries:
        raise ConfigError(f"no method matches {pattern!r}. Known: {', '.join(list_models())}.")
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        typer.echo(f"{entry.name:{width}}  {entry.summary}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A method, see 'zoo list'.")],
    net: Annotated[str, typer.Option(help="Network whose slots are shown.")] = "mlp:4-8-2",
    likelihood: Annotated[str, typer.Option(help="Likelihood.")] = "categorical",
    prior: Annotated[
        list[str] | None, typer.Option(help="Prior swap, 'PATTERN=PRIOR'; repeatable.")
    ] = None,
    bayesian: Annotated[
        list[str] | None, typer.Option(help="Pattern of Bayesian parameters; repeatable.")
    ] = None,
) -> None:
    """Show a method: the model in words and formulas, and every slot with its prior and guide."""
    from zoo.workflow.show import describe_method

    typer.echo(
        describe_method(
            name,
            net=net,
            likelihood=likelihood,
            priors=_parse_prior_flags(prior),
            bayesian=tuple(bayesian) if bayesian else None,
        )
    )


@app.command()
def data(
    name: Annotated[
        str | None, typer.Argument(help="A data set; without it all are listed.")
    ] = None,
) -> None:
    """List the data sets that need no file."""
    from zoo.data import describe, list_datasets

    names = [name] if name else list_datasets()
    for info in map(describe, names):
        typer.echo(
            f"{info.name:22}{info.task:16}{info.num_rows:>6} rows {info.num_features:>4} features  "
            f"{info.description}"
        )


@app.command()
def fit(
    method: Annotated[str | None, typer.Argument(help="A method, see 'zoo list'.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set (see 'zoo data'), or a CSV or Parquet file.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column of the file to predict.")] = None,
    task: Annotated[
        str | None, typer.Option(help="regression, classification or counts; else inferred.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="Missing values: refuse (default), impute or drop.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Column of the file to leave out; repeatable.")
    ] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Share of test rows.")] = None,
    net: Annotated[
        str | None,
        typer.Option(
            help="mlp, mlp:64-100-10, linear, polynomial:3, lenet300, lenet5, cells:8-2-2, "
            "graph:path.yaml, module:path.py:function."
        ),
    ] = None,
    likelihood: Annotated[
        str | None,
        typer.Option(
            help="gaussian, gaussian(noise=0.1), gaussian(noise=heteroscedastic), student_t(df=4), "
            "bernoulli, categorical, poisson."
        ),
    ] = None,
    prior: Annotated[
        list[str] | None,
        typer.Option(help="Prior swap, for example '*.weight=Normal(0, 1)'; repeatable."),
    ] = None,
    bayesian: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of Bayesian parameters, the rest are points; repeatable."),
    ] = None,
    guide: Annotated[
        str | None,
        typer.Option(
            help="factorised; full_rank: one Normal with all correlations, if small; "
            "linear: for hypernetwork."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides split, start, batches, noise.")] = None,
    start: Annotated[
        int | None,
        typer.Option(help="Another start, batches and noise for the same seed and split."),
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(help="Further fits from other starts, to see whether they agree.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.")] = None,
    autocast: Annotated[
        bool | None,
        typer.Option("--autocast/--no-autocast", help="Let the network compute in bfloat16."),
    ] = None,
    num_threads: Annotated[
        int | None, typer.Option(help="Threads of the CPU; by default one for small problems.")
    ] = None,
    num_steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear or cosine.")] = None,
    pretrain: Annotated[
        float | None, typer.Option(help="Share of the run, at its start, without the KL.")
    ] = None,
    kl_warmup: Annotated[
        float | None, typer.Option(help="Share of the run over which the KL is phased in.")
    ] = None,
    init_scale: Annotated[float | None, typer.Option(help="Posterior sd at the start.")] = None,
    grad_clip: Annotated[float | None, typer.Option(help="Largest gradient norm.")] = None,
    num_particles: Annotated[int | None, typer.Option(help="Posterior draws per step.")] = None,
    estimator: Annotated[
        str | None,
        typer.Option(help="What is sampled: local (layer outputs), weights, or auto."),
    ] = None,
    compile: Annotated[
        str | None,
        typer.Option(
            help="How steps are run: auto, off, replay (recorded) or inductor (compiled)."
        ),
    ] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Share of training rows held out for early stopping.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Evaluations without improvement before stopping.")
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(help="Posterior draws that are stored.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between two checkpoints.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of these; flags come first.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; by default the next number under runs/.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue an interrupted run from its checkpoint.")
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Hold the fit against NUTS; for small problems.")
    ] = False,
    robustness: Annotated[
        bool,
        typer.Option("--robustness", help="Score the fit under noise, FGSM and deleted weights."),
    ] = False,
    executor: Annotated[
        str | None,
        typer.Option(
            help="Where restarts and chains run: serial, processes, processes:N or tcp://host:port."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fit a method, and write a run directory with posterior, findings and report.

    Exit code 3: finished, but a finding says that the fit must not be used yet.
    """
    flags = {
        name: value
        for name, value in locals().items()
        if name not in FIT_ONLY and value is not None
    }
    flags = {name: tuple(v) if isinstance(v, list) else v for name, v in flags.items()}
    if prior:
        flags["priors"] = _parse_prior_flags(prior)
    if resume is not None and (flags or config or out):
        given = ", ".join(f"--{name.replace('_', '-')}" for name in flags) or "--config or --out"
        raise ConfigError(f"--resume repeats the stored configuration; it does not take {given}.")
    if executor is not None:
        from zoo.infer.tasks.executor import check_executor

        check_executor(executor)
    how = {
        "truth": truth,
        "robustness": robustness,
        "executor": executor,
        "progress_bar": False if quiet else None,
    }
    if resume is not None:
        _fit_resumed(resume, how)
    else:
        _fit_new(flags, config, out, how)


def _fit_new(
    flags: dict[str, Any], config: Path | None, out: Path | None, how: dict[str, Any]
) -> None:
    from zoo.fit.config import make_config, read_config

    values = read_config(config) if config else {}
    if "priors" in flags and isinstance(values.get("priors"), dict):
        flags["priors"] = values["priors"] | flags["priors"]
    if DATA_FLAGS & flags.keys():  # other rows, or the same ones split in another way
        values.pop("data_sha256", None)
    values |= flags
    if "method" not in values or "data" not in values:
        raise ConfigError("name a method and data, for example: zoo fit mean_field --data digits")
    checked = make_config(**values)

    from zoo.fit.prepare import prepare
    from zoo.fit.store import RunDirectory
    from zoo.workflow.fitting import run

    prepared = prepare(checked)
    directory = RunDirectory.new(out)
    with _interruptible(directory.path):
        _print_results(run(prepared, directory, **how))


def _fit_resumed(path: Path, how: dict[str, Any]) -> None:
    from zoo.fit.store import RunDirectory
    from zoo.workflow.fitting import resume

    with _interruptible(path):
        directory = RunDirectory(path)
        _print_results(resume(directory, **how))


@contextmanager
def _interruptible(path: Path) -> Iterator[None]:
    """Say how to go on after Ctrl-C; said here, because typer swallows the exception."""
    from zoo.fit.store import CHECKPOINT

    try:
        yield
    except KeyboardInterrupt:
        saved = (path / CHECKPOINT).exists()
        what = "the checkpoint is saved" if saved else "there is no checkpoint yet"
        typer.echo(f"zoo: interrupted; {what}. Continue with: zoo fit --resume {path}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_results(fitted: Any) -> None:
    from zoo.fit.store import METRICS, REPORT, RunDirectory
    from zoo.workflow.outputs import read_findings

    metrics = RunDirectory(fitted.path).read_json(METRICS)
    width = max(map(len, metrics))
    for name, value in metrics.items():
        typer.echo(f"{name:{width}}  {value:.6g}")
    typer.echo(f"run     {fitted.path}")
    typer.echo(f"report  {fitted.path / REPORT}")
    _judge(read_findings(RunDirectory(fitted.path)))


def _judge(findings: list[Any]) -> None:
    """Print the verdict and what caused it; a failure is an exit code."""
    from zoo.diagnostics import verdict

    result = verdict(findings)
    for finding in findings:
        if finding.level in ("warn", "fail"):
            typer.echo(f"{finding.level:6}  {finding.message} {finding.advice}")
    typer.echo(f"verdict {result.level}: {result.sentence}")
    if result.level == "fail":
        raise typer.Exit(EXIT_NOT_TRUSTED)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input columns.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; by default standard output.")
    ] = None,
    num_samples: Annotated[int | None, typer.Option(help="Posterior draws.")] = None,
    per_row: Annotated[
        bool,
        typer.Option("--per-row", help="Draws for each row alone, not joint over the rows."),
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Probability inside the interval of a numeric prediction.")
    ] = 0.9,
) -> None:
    """Predict the rows of a table: means or classes, intervals, both parts of the uncertainty."""
    from zoo.data import read_table
    from zoo.fit.prediction_table import prediction_table
    from zoo.workflow.result import load

    if not 0 < interval < 1:
        raise ConfigError(f"the interval is a probability between 0 and 1. Got {interval}.")
    fitted = load(run)
    prediction = fitted.predict(read_table(file), num_samples=num_samples, per_row=per_row)
    table = prediction_table(prediction, interval=interval)
    if out is None:
        typer.echo(table.to_csv(index=False), nl=False)
        return
    from zoo.fit.store import atomic_path

    with atomic_path(out) as temporary:
        table.to_csv(temporary, index=False)
    typer.echo(f"{len(table)} predictions written to {out}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A method, see 'zoo list'.")],
) -> None:
    """Run the contract checks on a method, ending with the two that have an exact answer."""
    from zoo.testing import run_checks

    failed = 0
    for result in run_checks(name):
        typer.echo(
            f"{result.status:18}{result.check}{'  ' + result.detail if result.detail else ''}"
        )
        failed += not result.ok
    if failed:
        typer.echo(f"{failed} checks failed", err=True)
        raise typer.Exit(1)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    robustness: Annotated[
        bool,
        typer.Option("--robustness", help="Score the fit under noise, FGSM and deleted weights."),
    ] = False,
) -> None:
    """Judge a stored run again and rewrite its findings and its report."""
    from zoo.fit.store import REPORT, RunDirectory
    from zoo.workflow.outputs import write_report

    directory = RunDirectory(run)
    directory.require_complete()
    if robustness:
        from zoo.workflow.outputs import write_robustness

        write_robustness(directory)
    findings = write_report(directory)
    typer.echo(f"report  {directory.path / REPORT}")
    _judge(findings)


@app.command()
def compress(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="Prune groups with a larger score: a number, or 'PATTERN=NUMBER'; repeatable."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Prune as much as costs so many nats per row, on no test rows."),
    ] = None,
    bits: Annotated[
        str, typer.Option(help="Bits from posterior variances: variance, sd or off.")
    ] = "variance",
    complexity: Annotated[
        float | None,
        typer.Option(help="Weight of the complexity, for a hypernetwork: the larger, the simpler."),
    ] = None,
    onnx: Annotated[
        bool | None,
        typer.Option("--onnx/--no-onnx", help="Write network.onnx; by default if onnx is there."),
    ] = None,
) -> None:
    """Make the network of a run smaller, pack its weights, and measure before and after.

    Writes the directory 'compressed' and 'compression.json' into the run, and its report anew.
    """
    from zoo.fit.store import COMPRESSED, COMPRESSION
    from zoo.workflow.compressing import compress_run

    compression = compress_run(
        run,
        threshold=_parse_thresholds(threshold),
        tolerance=tolerance,
        bits=bits,  # type: ignore[arg-type]
        complexity=complexity,
        onnx=onnx,
    )
    typer.echo(compression.table())
    typer.echo(f"\nnetwork {run / COMPRESSED}")
    typer.echo(f"numbers {run / COMPRESSION}")


def _parse_thresholds(flags: list[str] | None) -> float | dict[str, float] | None:
    """Read '3', or 'PATTERN=3' for some slots."""
    if not flags:
        return None
    parsed: dict[str, float] = {}
    for flag in flags:
        pattern, separator, number = flag.rpartition("=")
        try:
            parsed[pattern.strip() if separator else ""] = float(number)
        except ValueError:
            raise ConfigError(
                f"a threshold is a number, or 'PATTERN=NUMBER'. Got {flag!r}."
            ) from None
    if "" in parsed and len(parsed) > 1:
        raise ConfigError("give one threshold for all slots, or one for each pattern, not both.")
    return parsed.get("", parsed)


@app.command()
def truth(
    method: Annotated[str, typer.Argument(help="A method, see 'zoo list'.")],
    data: Annotated[
        str | None, typer.Option(help="Data; by default the method's own small problem.")
    ] = None,
    net: Annotated[str | None, typer.Option(help="Network, as for 'zoo fit'.")] = None,
    likelihood: Annotated[str | None, typer.Option(help="As for 'zoo fit'.")] = None,
    prior: Annotated[
        list[str] | None, typer.Option(help="Prior swap, as for 'zoo fit'; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data split and chains.")] = 0,
    num_chains: Annotated[int, typer.Option(help="Chains.")] = 4,
    num_samples: Annotated[int, typer.Option(help="Draws per chain; more if needed.")] = 1000,
    engine: Annotated[str, typer.Option(help="nutpie or pyro.")] = "nutpie",
    executor: Annotated[
        str | None, typer.Option(help="serial, processes, processes:N or tcp://host:port.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="netCDF file to write the draws to.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Sample a method's posterior by NUTS, show it, and check it against a closed form if any.

    An accepted truth is kept in the cache and found again.
    """
    from zoo.truth.of_method import entry_truth

    given: dict[str, Any] = {"data": data, "net": net, "likelihood": likelihood, "seed": seed}
    if prior:
        given["priors"] = _parse_prior_flags(prior)
    found = entry_truth(
        method,
        {name: value for name, value in given.items() if value is not None},
        seed=seed,
        num_chains=num_chains,
        num_samples=num_samples,
        engine=engine,
        executor=executor,
        progress_bar=False if quiet else None,
    )
    typer.echo(found.table.to_string(float_format=lambda value: f"{value:.4g}"))
    if found.exact_z is not None:
        typer.echo(
            f"closed form: largest difference {found.exact_z:.1f} Monte Carlo standard errors "
            "(up to 5 are expected)"
        )
    if out is not None:
        found.truth.save(out)
        typer.echo(f"draws   {out}")
    for reason in found.truth.reasons:
        typer.echo(f"fail    {reason}")
    typer.echo(f"truth   {'accepted' if found.truth.accepted else 'not accepted'}")
    if not found.is_right:
        raise typer.Exit(EXIT_NOT_TRUSTED)


@app.command()
def sbc(
    method: Annotated[str, typer.Argument(help="A method, see 'zoo list'.")],
    engine: Annotated[
        str, typer.Option(help="svi judges the guide, nuts the model and the sampler.")
    ] = "svi",
    num_simulations: Annotated[int, typer.Option(help="Simulated data sets.")] = 100,
    prior: Annotated[
        list[str] | None, typer.Option(help="Prior swap, as for 'zoo fit'; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides everything.")] = 0,
    executor: Annotated[
        str | None, typer.Option(help="serial, processes, processes:N or tcp://host:port.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG or SVG file for the ranks.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Test by simulation whether posteriors are calibrated: are ranks of true values uniform."""
    from zoo.truth.calibration import calibrate

    result = calibrate(
        method,
        engine=engine,  # type: ignore[arg-type]
        num_simulations=num_simulations,
        priors=_parse_prior_flags(prior),
        seed=seed,
        executor=executor,
        progress_bar=False if quiet else None,
    )
    if plot is not None:
        from zoo.report.figures.ranks import save_rank_plot

        save_rank_plot(result.tests, plot)
        typer.echo(f"plot    {plot}")
    for finding in result.findings:
        if finding.level not in ("warn", "fail"):  # those follow with the verdict
            typer.echo(f"{finding.level:6}  {finding.message}")
    _judge(result.findings)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Finished run directories.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write: .html, .csv or .json by its ending.")
    ] = None,
) -> None:
    """Put runs side by side: scores with errors of differences, trust, sparsity and cost."""
    from zoo.workflow.comparing import compare as compare_runs
    from zoo.workflow.comparing import curves_of, write_comparison

    table = compare_runs(*runs)
    typer.echo(table.to_string(float_format=lambda value: f"{value:.4g}", na_rep="-"))
    if out is not None:
        write_comparison(table, out, curves_of(*runs))
        typer.echo(f"written {out}")


def _parse_prior_flags(flags: list[str] | None) -> dict[str, str]:
    """Split 'PATTERN=PRIOR' at the first '='; a prior alone goes to every weight."""
    priors: dict[str, str] = {}
    for flag in flags or []:
        pattern, separator, prior = flag.partition("=")
        # 'Normal(loc=0, scale=1)' has its first '=' inside the parentheses.
        if not separator or "(" in pattern:
            pattern, prior = "*weight", flag
        priors[pattern.strip()] = prior.strip()
    return priors


if __name__ == "__main__":
    main()
