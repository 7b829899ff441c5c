"""Tests of a method: ``zoo check``, ``zoo truth`` and ``zoo sbc``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.cli.exits import NOT_TRUSTED, judge
from zoo.cli.flags import Executor, Method, Priors, Quiet, parse_options, parse_priors


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


def sbc(
    method: Method,
    engine: Annotated[
        str, typer.Option(help="svi tests the guide, nuts tests the model and the sampler.")
    ] = "svi",
    num_simulations: Annotated[int, typer.Option(help="Number of simulated data sets.")] = 100,
    priors: Priors = None,
    seed: Annotated[int, typer.Option(help="Seed of simulations and fits.")] = 0,
    executor: Executor = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ranks to a PNG or SVG file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Test the calibration of posteriors by simulation.

    The ranks of true values among posterior draws must be uniform.
    """
    from zoo.truth.calibration import calibrate

    result = calibrate(
        method,
        engine=engine,  # type: ignore[arg-type]
        num_simulations=num_simulations,
        priors=parse_priors(priors),
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
    judge(result.findings)
