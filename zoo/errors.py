"""Errors caused by user input. Each message says what was wrong, where, and what is accepted.

All errors derive from `ZooError`. The command line prints the message on one line, without a
traceback, and exits with code 2.
"""

import difflib
from collections.abc import Iterable


class ZooError(ValueError):
    """Base class of all errors caused by user input."""


class UnknownNameError(ZooError):
    """An unknown name of a method, data set, network, likelihood, ..."""


class PriorError(ZooError):
    """A prior that cannot be parsed, does not exist, or does not fit its slot."""


class ConfigError(ZooError):
    """A run configuration with a missing, unknown or impossible value."""


class DataError(ZooError):
    """Data that cannot be read or cannot be used."""


class StoreError(ZooError):
    """A run directory or checkpoint that is missing, incomplete, damaged or not writable."""


class CompressionError(ZooError):
    """A network that cannot be compressed, or a compressed network that cannot be read."""


class TruthError(ZooError):
    """Draws that do not meet the criteria of a reference posterior, with the failed criteria."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Return the error for an unknown name, which lists the known ones."""
    known = sorted(known)
    return UnknownNameError(
        f"unknown {kind} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
    )
