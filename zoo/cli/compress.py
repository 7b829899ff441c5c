"""``zoo compress``: a smaller network from a run."""

from typing import Annotated

import typer

from zoo.cli.flags import Run
from zoo.errors import ConfigError


def compress(
    run: Run,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="Prune groups with a score above a number, or 'PATTERN=NUMBER'; repeatable."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Prune until the loss grows by this many nats per row, measured without test rows."
        ),
    ] = None,
    bits: Annotated[
        str, typer.Option(help="Choose bits by posterior variances: variance, sd or off.")
    ] = "variance",
    complexity: Annotated[
        float | None,
        typer.Option(help="Weight of the complexity, for a hypernetwork; larger is simpler."),
    ] = None,
    onnx: Annotated[
        bool | None,
        typer.Option("--onnx/--no-onnx", help="Write network.onnx; done if onnx is installed."),
    ] = None,
) -> None:
    """Prune the network of a run and pack its weights.

    Measures the network before and after, writes the directory 'compressed' and the file
    'compression.json' into the run, and updates its report.
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
