"""Render pages from templates, with inlined styles and script and a strict content policy."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

from zoo.diagnostics.finding import LEVELS, format_number
from zoo.report.figures.canvas import Picture

#: A word and a sign for every level, so that levels do not depend on colour.
WORDS = {
    "ok": "Passed",
    "info": "Note",
    "unchecked": "Not checked",
    "warn": "Warning",
    "fail": "Failed",
}
SIGNS = {"ok": "✓", "info": "i", "unchecked": "?", "warn": "!", "fail": "✕"}


def render(template: str, **context: Any) -> str:
    """Return a page. The context is escaped, except for the markup of figures."""
    environment = _environment()
    script = _static(environment, "page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    page = environment.get_template(template).render(
        **context,
        # The package's own files, not user text.
        css=Markup(_static(environment, "page.css")),
        script=Markup(script),
        policy=policy,
    )
    # Names from damaged files may contain characters that cannot be encoded.
    return page.encode("utf-8", "backslashreplace").decode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": _number,
        "tidy": _tidy,
        "breakable": _breakable,
        "placed": _placed,
    }
    environment.globals |= {"words": WORDS, "signs": SIGNS, "levels": LEVELS}
    return environment


def _static(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, name)
    return source


def _placed(pictures: Sequence[Picture]) -> list[tuple[Picture, str]]:
    """Return the layout of figures on a page that is two panels wide, without empty halves.

    Two single panels are placed side by side (``half``). Other figures take the whole width, with
    the caption below an even number of panels (``below``) or beside the last of an odd number
    (``beside``).
    """
    placed: list[tuple[Picture, str]] = []
    for picture in pictures:
        single = len(picture.panels) == 1
        if single and placed and placed[-1][1] == "beside" and len(placed[-1][0].panels) == 1:
            placed[-1] = (placed[-1][0], "half")
            placed.append((picture, "half"))
        else:
            placed.append((picture, "beside" if len(picture.panels) % 2 else "below"))
    return placed


def _tidy(value: Any) -> Any:
    """Keep a number and its percent sign on one line."""
    return value.replace(" %", "\u00a0%") if isinstance(value, str) else value


def _breakable(name: Any) -> Markup:
    """Allow line breaks in a long name after dots and underscores."""
    escaped = str(escape(str(name)))
    return Markup(re.sub(r"([._])(?=\w)", r"\1<wbr>", escaped))


def _number(value: Any) -> str:
    """Format a number for a table; text is returned unchanged."""
    if value is None or isinstance(value, str):
        return "–" if value is None else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value}"
    return format_number(float(value))
