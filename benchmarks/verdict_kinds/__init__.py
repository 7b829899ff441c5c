"""Kinds of fits with labels, for `benchmarks.verdicts`.

`good` and the files `bad_*` are the part ``tune``; the part ``kept`` is in `kept` and is not looked
at while checks and thresholds are changed.
"""

import importlib

from benchmarks.verdict_kinds.case import Kind

FILES = {
    "tune": {
        "good": "GOOD",
        "bad_training": "BAD_TRAINING",
        "bad_models": "BAD_MODELS",
        "bad_data": "BAD_DATA",
    },
    "kept": {"kept": "KEPT"},
}


def kinds(part: str) -> dict[str, Kind]:
    """Return the kinds of a part by name."""
    found: dict[str, Kind] = {}
    for file, name in FILES[part].items():
        module = importlib.import_module(f"benchmarks.verdict_kinds.{file}")
        found |= getattr(module, name)
    return found
