"""Rows of the benchmark: one fit each, appended to a CSV file as soon as it is done."""

import csv
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.verdict_kinds.case import USES

ROOT = Path(__file__).parents[2]
KEYS = ("overall", *USES)
PARTS = ("tune", "kept")
#: Seconds of CPU time after which a fit is given up; the load of the machine does not count.
LIMIT = 600
LISTS = ("failed", "warned", "unchecked")
COLUMNS = [
    "kind",
    "part",
    "seed",
    *(f"{what}_{key}" for key in KEYS for what in ("label", "verdict", *LISTS)),
    "error",
    "steps",
    "seconds",
    "commit",
    "date",
    "versions",
]


def pending(path: Path, wanted: Sequence[tuple[str, int]], *, fresh: bool) -> list[tuple[str, int]]:
    """Return the pairs of kind and seed that have no row yet; with ``fresh`` remove their rows."""
    if not path.exists():
        return list(wanted)
    table = read(path)
    done = set(zip(table.kind, table.seed, strict=True))
    if not fresh:
        return [pair for pair in wanted if pair not in done]
    kinds = {kind for kind, _ in wanted}
    table[~table.kind.isin(kinds)].to_csv(path, index=False)
    return list(wanted)


def read(path: Path) -> pd.DataFrame:
    """Read rows; missing texts are empty."""
    return pd.read_csv(path, dtype={"seed": int}, keep_default_na=False)


def append(path: Path, row: dict[str, Any]) -> None:
    """Write a row at the end of the file."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def run(part: str, path: Path, pairs: Sequence[tuple[str, int]], jobs: int) -> None:
    """Fit and judge in as many processes as there are jobs, each with one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"
    stamp = {"part": part, "commit": commit()}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(row_of, part, kind, seed) for kind, seed in pairs]
        for number, future in enumerate(as_completed(futures), start=1):
            row = future.result() | stamp
            append(path, row)
            print(_line(number, len(pairs), row), flush=True)


def row_of(part: str, name: str, seed: int) -> dict[str, Any]:
    """Return a row of the table; a fit that raises an error has the verdict ``error``."""
    import torch

    from benchmarks.verdict_kinds import kinds
    from benchmarks.verdict_kinds.judge import judged

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind = kinds(part)[name]
    labels = {"overall": kind.overall or "", **kind.labels}
    row: dict[str, Any] = {
        "kind": name,
        "seed": seed,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
    }
    row |= {"versions": versions()} | {f"label_{key}": labels.get(key, "") for key in KEYS}
    start = time.process_time()
    try:
        with limited(LIMIT):
            found, fitted = judged(kind.case(seed), seed)
    except Exception as error:  # any error of the library is a result here
        row["error"] = f"{type(error).__name__}: {error}"[:300]
        row |= {f"verdict_{key}": "error" for key in KEYS if labels.get(key)}
    else:
        row["steps"] = len(fitted.losses)
        for key, level in found.levels.items():
            row[f"verdict_{key}"] = level
            lists = zip(LISTS, found.checks[key].values(), strict=True)
            row |= {f"{what}_{key}": " ".join(names) for what, names in lists}
    return row | {"seconds": round(time.process_time() - start, 1)}


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise a `TimeoutError` after some seconds of CPU time."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not finished after {seconds} seconds of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def versions() -> str:
    """Return the versions that results depend on."""
    from importlib.metadata import version

    names = ("torch", "pyro-ppl", "numpy", "arviz-stats")
    return " ".join(f"{name}={version(name)}" for name in names)


def commit() -> str:
    """Return the commit of the working tree, with a plus if files of the library differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "zoo", "guides", "benchmarks/*.py"
    )
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _line(number: int, total: int, row: dict[str, Any]) -> str:
    """Return what is shown of a row; kinds that are kept out stay unseen."""
    if row["part"] == "kept":
        return f"{number:4}/{total} {row['seconds']:6.1f} s"
    shown = f"{row['label_overall']:8}{row['verdict_overall']:10}{row['seconds']:6.1f} s"
    return f"{number:4}/{total} {row['kind']:32} {row['seed']:2} {shown} {row.get('error', '')}"
