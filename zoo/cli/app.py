"""The command ``zoo``. Heavy imports happen inside the commands, so that help answers at once."""

import sys
from typing import Annotated

import typer

from zoo._version import __version__
from zoo.cli.catalog import data, list_methods, show
from zoo.cli.compress import compress
from zoo.cli.config_flags import SectionedCommand
from zoo.cli.exits import BAD_INPUT, INTERRUPTED
from zoo.cli.fit import fit
from zoo.cli.proofs import check, sbc, truth
from zoo.cli.runs import compare, predict, report
from zoo.errors import ZooError

app = typer.Typer(
    name="zoo",
    help="Bayesian deep learning on Pyro: pick a method, swap its priors, fit it, read the report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors on one line, help without boxes
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The order of the help.
app.command("list")(list_methods)
app.command()(show)
app.command()(data)
app.command(cls=SectionedCommand)(fit)
for _command in (predict, report, compare, compress, check, truth):
    app.command()(_command)
app.command(cls=SectionedCommand)(sbc)


def main() -> None:
    """Run the command line; errors of the user give a message of one line and exit code 2."""
    try:
        app()
    except ZooError as error:
        typer.echo(f"zoo: error: {' '.join(str(error).split())}", err=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo("zoo: interrupted", err=True)
        sys.exit(INTERRUPTED)


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
