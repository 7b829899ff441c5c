"""Commands on finished runs: ``zoo predict``, ``zoo report`` and ``zoo compare``."""

from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.exits import judge
from zoo.cli.flags import ForUse, Robustness, Run
from zoo.errors import ConfigError


def predict(
    run: Run,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input columns.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; standard output by default.")
    ] = None,
    num_samples: Annotated[int | None, typer.Option(help="Number of posterior draws.")] = None,
    per_row: Annotated[
        bool,
        typer.Option("--per-row", help="Draw for each row separately instead of jointly."),
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Probability of the interval of a numeric prediction.")
    ] = 0.9,
) -> None:
    """Predict the rows of a table.

    Returns means or classes, intervals, and both parts of the uncertainty.
    """
    from zoo.data import read_table
    from zoo.fit.prediction_table import prediction_table
    from zoo.fit.stored import read_fitted

    if not 0 < interval < 1:
        raise ConfigError(f"the interval is a probability between 0 and 1. Got {interval}.")
    prediction = read_fitted(run).predict(
        read_table(file), num_samples=num_samples, per_row=per_row
    )
    table = prediction_table(prediction, interval=interval)
    if out is None:
        typer.echo(table.to_csv(index=False), nl=False)
        return
    from zoo.fit.store import atomic_path

    with atomic_path(out) as temporary:
        table.to_csv(temporary, index=False)
    typer.echo(f"{len(table)} predictions written to {out}")


def report(run: Run, robustness: Robustness = False, use: ForUse = None) -> None:
    """Judge a run again and rewrite its report."""
    from zoo.fit.store import REPORT, RunDirectory
    from zoo.workflow.outputs import write_report, write_robustness

    directory = RunDirectory(run)
    directory.require_complete()
    if robustness:
        write_robustness(directory)
    judgement = write_report(directory)
    typer.echo(f"report  {directory.path / REPORT}")
    judge(judgement.on(use))


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Finished run directories.")],
    out: Annotated[Path | None, typer.Option(help="Write an .html, .csv or .json file.")] = None,
) -> None:
    """Compare the scores, findings and cost of runs.

    Differences of scores are given with their standard errors.
    """
    from zoo.workflow.comparing import compare as compare_runs
    from zoo.workflow.comparing import curves_of, write_comparison

    table = compare_runs(*runs)
    typer.echo(table.to_string(float_format=lambda value: f"{value:.4g}", na_rep="-"))
    if out is not None:
        write_comparison(table, out, curves_of(*runs))
        typer.echo(f"written {out}")
