"""Exit codes, and the exit code of findings."""

from typing import Any

import typer

BAD_INPUT = 2
#: The command finished, but its result must not be used: a finding has level ``fail``.
NOT_TRUSTED = 3
INTERRUPTED = 130


def judge(judgement: Any) -> None:
    """Print the verdict on every use and its reasons; exit with a code if it is ``fail``.

    Findings on uses that are not asked for are in the report.
    """
    from zoo.diagnostics.uses import USE_WORDS
    from zoo.diagnostics.verdict import level_words

    result = judgement.verdict
    for finding in judgement.findings:
        asked = set(finding.uses) & set(result.asked)
        if asked and finding.level in ("unchecked", "warn", "fail"):
            typer.echo(f"{level_words(finding.level):11}  {finding.message} {finding.advice}")
    for use in result.asked:
        level = level_words(result.uses[use].level)
        typer.echo(f"{level:11}  {USE_WORDS[use]} ({use})")
    typer.echo(f"verdict {level_words(result.level)}: {result.sentence}")
    if result.level == "fail":
        raise typer.Exit(NOT_TRUSTED)
