"""Errors a user can cause. Each message says what was wrong, where, and what is accepted.

Everything derives from `ZooError`; the command line prints the message on one line and exits with
code 2, so that no user mistake ends in a traceback.
"""

import difflib
from collections.abc import Iterable


class ZooError(ValueError):
    """Root of all errors that are caused by input, never by a defect of the library."""


class UnknownNameError(ZooError):
    """A name (method, data set, network, likelihood, ...) that nothing answers to."""


class PriorError(ZooError):
    """A prior that cannot be parsed, does not exist, or does not fit its slot."""


class ConfigError(ZooError):
    """A run configuration with a missing, unknown or impossible value."""


class DataError(ZooError):
    """Data that cannot be read or cannot be used."""


class StoreError(ZooError):
    """A run directory or checkpoint that is missing, incomplete, damaged or not writable."""


class CompressionError(ZooError):
    """A network that cannot be made smaller, or a compressed one that cannot be read."""


class NotFittedError(ZooError):
    """Something was asked of a model that needs a fit first."""


class TruthError(ZooError):
    """Draws that do not meet the criteria of a reference posterior; lists which and by how much."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that is not one of the known ones, all of which it lists."""
    known = sorted(known)
    return UnknownNameError(
        f"unknown {kind} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
    )
