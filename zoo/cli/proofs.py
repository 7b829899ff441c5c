"""Tests of a method: ``zoo check``, ``zoo truth`` and ``zoo sbc``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.cli.config_flags import flags_of, given_values
from zoo.cli.exits import NOT_TRUSTED, judge
from zoo.cli.fit import DATA_FIELDS, merged
from zoo.cli.flags import Executor, ForUse, Method, Priors, Quiet, parse_options, parse_priors
from zoo.errors import ConfigError
from zoo.fit.config import RunConfig, read_config


def check(name: Method) -> None:
    """Run the contract checks on a method."""
    from zoo.testing import run_checks

    failed = 0
    for result in run_checks(name):
        typer.echo(f"{result.status:18}{result.check}  {result.detail}".rstrip())
        failed += not result.ok
    if failed:
        typer.echo(f"{failed} checks failed", err=True)
        raise typer.Exit(1)


def truth(
    method: Method,
    data: Annotated[
        str | None, typer.Option(help="Data set or file; the method's small problem by default.")
    ] = None,
    net: Annotated[str | None, typer.Option(help="Network, as in 'zoo fit'.")] = None,
    likelihood: Annotated[str | None, typer.Option(help="Likelihood, as in 'zoo fit'.")] = None,
    priors: Priors = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", help="Setting of the method, as in 'zoo fit'; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the data split and of the chains.")] = 0,
    num_chains: Annotated[int, typer.Option(help="Number of chains.")] = 8,
    num_samples: Annotated[
        int, typer.Option(help="Draws per chain; increased if they are too few.")
    ] = 500,
    max_seconds: Annotated[
        float, typer.Option(help="Seconds for everything, from recording to the last draw.")
    ] = 120.0,
    reparameterise: Annotated[
        bool, typer.Option(help="Whether hierarchical normal sites are whitened.")
    ] = True,
    engine: Annotated[str, typer.Option(help="Sampler: nutpie or pyro.")] = "nutpie",
    executor: Executor = None,
    out: Annotated[Path | None, typer.Option(help="Write the draws to a netCDF file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Sample the posterior of a method by NUTS.

    The answer is accepted, refused with the reason, or out of budget. The draws are checked against
    the closed form if there is one. An accepted truth is cached and reused.
    """
    from zoo.infer.nuts.budget import BudgetError
    from zoo.truth.of_method import entry_truth

    given: dict[str, Any] = {"data": data, "net": net, "likelihood": likelihood}
    given |= {"priors": parse_priors(priors), "options": parse_options(options)}
    try:
        found = entry_truth(
            method,
            {"seed": seed}
            | {name: value for name, value in given.items() if value not in (None, {})},
            seed=seed,
            num_chains=num_chains,
            num_samples=num_samples,
            max_seconds=max_seconds,
            reparameterise=reparameterise,
            engine=engine,
            executor=executor,
            progress_bar=False if quiet else None,
        )
    except BudgetError as error:  # before there were draws
        typer.echo(f"fail    {error}")
        typer.echo("truth   out of budget")
        raise typer.Exit(NOT_TRUSTED) from None
    typer.echo(found.table.to_string(float_format=lambda value: f"{value:.4g}"))
    if found.exact_z is not None:
        typer.echo(
            f"closed form: largest difference {found.exact_z:.1f} Monte Carlo standard errors "
            "(up to 5 are expected)"
        )
    for name, value in found.truth.recipe.items():
        typer.echo(f"recipe  {name} = {value}")
    if out is not None:
        found.truth.save(out)
        typer.echo(f"draws   {out}")
    for reason in found.truth.reasons:
        typer.echo(f"fail    {reason}")
    typer.echo(f"truth   {found.truth.status}")
    if not found.is_right:
        raise typer.Exit(NOT_TRUSTED)


@flags_of(RunConfig)
def sbc(
    *,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of the above, such as that of a run.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="svi tests the guide, nuts tests the model and the sampler.")
    ] = "svi",
    num_simulations: Annotated[int, typer.Option(help="Number of simulated data sets.")] = 100,
    max_scale: Annotated[
        float, typer.Option(help="Discard simulated data this many times larger than the data.")
    ] = 100.0,
    executor: Executor = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory that keeps finished simulations; the same command continues them."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ranks to a PNG or SVG file.")] = None,
    use: ForUse = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Test the calibration of posteriors by simulation.

    Targets are simulated from prior and likelihood at the inputs of the data, and fitted as by
    'zoo fit'. The ranks of true values among posterior draws must be uniform. Without data, the
    problem is a small linear regression. Exit code 3: they are not uniform.
    """
    flags = given_values(RunConfig, settings)
    values = merged(_stored(config, flags), flags)
    if "method" not in values:
        raise ConfigError("name a method, for example: zoo sbc mean_field --data diabetes")

    from zoo.diagnostics import Judgement, verdict
    from zoo.report.figures.ranks import check_ending, save_rank_plot
    from zoo.truth.calibration import calibrate

    if plot is not None:
        check_ending(plot)
    result = calibrate(
        values.pop("method"),
        engine=engine,  # type: ignore[arg-type]
        num_simulations=num_simulations,
        max_scale=max_scale,
        executor=executor,
        out=out,
        progress_bar=False if quiet else None,
        **values,
    )
    if plot is not None:
        save_rank_plot(result.tests, plot)
        typer.echo(f"plot    {plot}")
    for finding in result.findings:
        if finding.level not in ("warn", "fail"):  # those follow with the verdict
            typer.echo(f"{finding.level:11}  {finding.message}")
    judgement = Judgement(tuple(result.findings), verdict(result.findings).asked)
    judge(judgement.on(use))


def _stored(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Read a configuration; its checksum is dropped if flags choose other data."""
    values = read_config(config) if config else {}
    if DATA_FIELDS & flags.keys():
        values.pop("data_sha256", None)
    if config and not (values | flags).get("data"):
        raise ConfigError(f"the configuration {str(config)!r} names no data: give --data.")
    return values
