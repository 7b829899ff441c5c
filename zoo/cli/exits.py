"""Exit codes, and the exit code of findings."""

from typing import Any

import typer

BAD_INPUT = 2
#: The command finished, but its result must not be used: a finding has level ``fail``.
NOT_TRUSTED = 3
INTERRUPTED = 130


def judge(findings: list[Any]) -> None:
    """Print the verdict and its reasons; exit with a code if it is ``fail``."""
    from zoo.diagnostics import verdict

    result = verdict(findings)
    for finding in findings:
        if finding.level in ("warn", "fail"):
            typer.echo(f"{finding.level:6}  {finding.message} {finding.advice}")
    typer.echo(f"verdict {result.level}: {result.sentence}")
    if result.level == "fail":
        raise typer.Exit(NOT_TRUSTED)
