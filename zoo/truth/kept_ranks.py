"""Ranks of finished simulations in a directory, so that an interrupted calibration continues."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import StoreError
from zoo.fit.store import atomic_path
from zoo.infer.tasks.running import Report
from zoo.truth.quantities import Simulated

#: Ranks by quantity; None if training diverged.
Ranks = dict[str, int] | None


@dataclass(frozen=True)
class KeptRanks:
    """A simulation that is run only if the file with its ranks does not exist.

    Attributes
    ----------
    path
        The file; its name is a checksum of settings and simulated data, so that a change of either
        is another simulation.
    task
        Runs the simulation.
    """

    path: Path
    task: Callable[[Report | None], Ranks]

    def __call__(self, report: Report | None = None) -> Ranks:
        """Return the ranks."""
        if self.path.exists():
            if report is not None:
                report(1)
            return read_ranks(self.path)
        ranks = self.task(report)
        with atomic_path(self.path) as temporary:
            temporary.write_text(json.dumps(ranks), encoding="utf-8")
        return ranks


def make_folder(folder: Path) -> None:
    """Make the directory of the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the directory {str(folder)!r}: {error}") from None


def read_ranks(path: Path) -> Ranks:
    """Read ranks; a file that holds anything else is a `StoreError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{str(path)!r} cannot be read: {error}. Remove it.") from None
    is_rank = isinstance(found, dict) and all(type(value) is int for value in found.values())
    if found is not None and not is_rank:
        raise StoreError(f"{str(path)!r} holds no ranks. Remove it.")
    ranks: Ranks = found
    return ranks


def name_of(settings: Mapping[str, Any], simulated: Simulated, seed: int) -> str:
    """Return the name of the file of one simulation."""
    digest = hashlib.sha256(json.dumps([dict(settings), seed], sort_keys=True).encode())
    data = simulated.data if isinstance(simulated.data, Mapping) else {"y": simulated.data}
    for name, value in sorted({**simulated.values, **data}.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return f"{digest.hexdigest()[:20]}.json"
