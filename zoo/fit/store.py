"""A run directory, and files that are written atomically.

``config.yaml`` and ``data.json`` are written first, ``checkpoint.safetensors`` while training, and
``metrics.json`` last: a directory without it is an unfinished run. Tensors are stored as
safetensors, which cannot hold code.
"""

import contextlib
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from zoo.errors import StoreError

CONFIG = "config.yaml"
DATA = "data.json"
CHECKPOINT = "checkpoint.safetensors"
GUIDE = "guide.safetensors"
POSTERIOR = "posterior.nc"
TRUTH = "truth.nc"
FINDINGS = "findings.json"
METRICS = "metrics.json"
GROUPS = "groups.json"
SUMMARY = "summary.csv"
REPORT = "report.html"
COMPRESSION = "compression.json"
#: Directory of the compressed network.
COMPRESSED = "compressed"

#: Where runs go when no directory is named.
RUNS = Path("runs")
FORMAT = "1"
#: Number of attempts to make a directory under `RUNS`, if other processes do the same.
MAX_TRIES = 100


class RunDirectory:
    """The files of one run, in a directory that need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def new(cls, path: str | Path | None) -> "RunDirectory":
        """Make an empty directory; without a path the next free number under ``runs``."""
        if path is None:
            return cls(_make_next(RUNS))
        run = cls(path)
        with _explained(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            if any(run.path.iterdir()):
                raise StoreError(
                    f"{str(run.path)!r} is not empty. Name another directory with --out, or "
                    f"continue an interrupted run with --resume {run.path}."
                )
        return run

    @property
    def is_complete(self) -> bool:
        """Whether the run is finished: its metrics are written last."""
        return (self.path / METRICS).is_file()

    def require_config(self) -> None:
        """Check that the directory holds a run."""
        if not (self.path / CONFIG).is_file():
            raise StoreError(f"{str(self.path)!r} is not a run directory: it has no {CONFIG}.")

    def require_unfinished(self) -> None:
        """Check that the directory holds an interrupted run."""
        self.require_config()
        if self.is_complete:
            raise StoreError(f"the run in {str(self.path)!r} is finished: nothing to resume.")

    def require_complete(self) -> None:
        """Check that the directory holds a finished run."""
        self.require_config()
        if not self.is_complete:
            raise StoreError(
                f"the run in {str(self.path)!r} is not finished. Continue it with "
                f"zoo fit --resume {self.path}"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes; the lock of a killed process is released."""
        try:
            fcntl = importlib.import_module("fcntl")
        except ImportError:  # Windows has no such module, and nothing to lock with
            yield
            return
        with open(self.path / CONFIG, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another process is writing to {str(self.path)!r}. Wait for it, or stop it."
                ) from None
            yield

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        with atomic_path(self.path / name) as temporary:
            # A report may contain a file name that is not valid text.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file atomically."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=True) + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON file of this run."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise StoreError(f"cannot read {str(path)!r}: {error}") from None

    def write_tensors(
        self, name: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]
    ) -> None:
        """Write tensors, and numbers in the file's header, atomically."""
        header = {"format": FORMAT, "numbers": json.dumps(dict(numbers))}
        # The format does not accept views of shared memory or of memory in another order.
        copies = {
            key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for key, value in tensors.items()
        }
        with atomic_path(self.path / name) as temporary:
            # Not `save_file`, which makes files that only their owner may read.
            temporary.write_bytes(save(copies, metadata=header))

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Read tensors and numbers written by `write_tensors`."""
        path = self.path / name
        if not path.is_file():
            raise StoreError(f"there is no {name} in {str(self.path)!r}.")
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}
            if header.get("format") != FORMAT:
                raise StoreError(f"{str(path)!r} has format {header.get('format')}, not {FORMAT}.")
            return tensors, json.loads(header["numbers"])
        except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
            raise StoreError(f"{str(path)!r} is damaged or truncated: {error}") from None

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with _explained(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove temporary files that a killed process left behind."""
        for leftover in self.path.glob(".*.tmp"):
            self.remove(leftover.name)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and move the file into place if there was no error.

    After a kill there is the old file or the new one. A full disk or an unwritable directory raises
    a `StoreError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _explained(path):
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"cannot write {str(path)!r}: {reason}.") from None


def _make_next(root: Path) -> Path:
    """Make the next numbered directory; another process may take a number first."""
    with _explained(root):
        for _ in range(MAX_TRIES):
            path = next_run_path(root)
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
                return path
    raise StoreError(f"cannot make a numbered directory under {str(root)!r}. Name one with --out.")


def next_run_path(root: Path) -> Path:
    """Return the first numbered directory after the last one under ``root``."""
    taken = [
        int(child.name)
        for child in (root.iterdir() if root.is_dir() else ())
        if re.fullmatch(r"\d{1,9}", child.name)
    ]
    return root / str(max(taken, default=0) + 1)
