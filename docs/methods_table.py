"""The README's table of methods: ``python docs/methods_table.py README.md``."""

import sys
from pathlib import Path

from zoo.errors import ConfigError
from zoo.registry import get, list_models

BEGIN = "<!-- methods: begin (made by python docs/methods_table.py) -->"
END = "<!-- methods: end -->"


def methods_table() -> str:
    """Return the table in Markdown, one row per method."""
    lines = [
        "| Method | What it is | Prunes | Analytic KL | Reference |",
        "|---|---|---|---|---|",
    ]
    for entry in map(get, list_models()):
        marks = ["yes" if mark else "no" for mark in (entry.compresses, entry.analytic_kl)]
        lines.append(
            f"| `{entry.name}` | {entry.summary} | {' | '.join(marks)} | {entry.reference} |"
        )
    return "\n".join(lines)


def with_table(text: str) -> str:
    """Return a text with the table between its two markers brought up to date."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the text needs the lines {BEGIN!r} and {END!r}.")
    return f"{before}{BEGIN}\n{methods_table()}\n{END}{after}"


def main(path: str) -> None:
    """Update a file, if its table is out of date."""
    file = Path(path)
    text = file.read_text(encoding="utf-8")
    updated = with_table(text)
    if updated != text:
        file.write_text(updated, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
