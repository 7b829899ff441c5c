"""Methods and data sets: ``zoo list``, ``zoo show`` and ``zoo data``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.flags import Method, Priors, parse_priors
from zoo.errors import ConfigError


def list_methods(
    pattern: Annotated[str, typer.Argument(help="Wildcard, for example '*horseshoe*'.")] = "*",
    task: Annotated[
        str | None, typer.Option(help="Only methods for regression, classification or counts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods of the zoo."""
    from zoo.registry import get, list_models
    from zoo.workflow.options import describe_options

    entries = [get(name) for name in list_models(pattern, task=task)]
    if as_json:
        rows = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "tasks": list(entry.tasks),
                "priors": dict(entry.priors),
                "options": describe_options(entry),
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


def show(
    name: Method,
    net: Annotated[str, typer.Option(help="Network whose slots are listed.")] = "mlp:4-8-2",
    likelihood: Annotated[str, typer.Option(help="Likelihood.")] = "categorical",
    priors: Priors = None,
    bayesian: Annotated[
        list[str] | None, typer.Option(help="Pattern of Bayesian parameters; repeatable.")
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(help="Draw the sites and plates of the model to a .dot, .svg or .png file."),
    ] = None,
) -> None:
    """Show the model, guide, options and slots of a method.

    Model and guide are printed as code, and each slot with its prior and posterior.
    """
    from zoo.workflow.show import show_method

    shown = show_method(
        name,
        net=net,
        likelihood=likelihood,
        priors=parse_priors(priors),
        bayesian=tuple(bayesian) if bayesian else None,
    )
    if graph is None:
        typer.echo(shown.text())
        return
    from zoo.workflow.graph import write_graph

    write_graph(shown.graph(), graph)
    typer.echo(f"graph   {graph}")


def data(
    name: Annotated[
        str | None, typer.Argument(help="A data set; all are listed by default.")
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
