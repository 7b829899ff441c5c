"""Parallel tasks on any executor, with a common progress bar."""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from zoo.errors import ZooError
from zoo.infer.tasks.executor import SerialExecutor, make_executor

T = TypeVar("T")
#: Called with the number of steps that a task has done so far.
Report = Callable[[int], None]

#: Seconds between two updates of a task's progress.
NOTE_SECONDS = 0.2


class ProgressNote:
    """Stores the number of steps done in a small file, for another process to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0.0

    def __call__(self, done: int) -> None:
        """Write the number at intervals; on another machine there is no directory to write to."""
        now = time.monotonic()
        if now - self._written > NOTE_SECONDS and self.path.parent.is_dir():
            self._written = now
            self.path.write_text(str(done))

    def read(self) -> int:
        """Return the last number written."""
        try:
            return int(self.path.read_text() or 0)
        except FileNotFoundError:
            return 0


def run_tasks(
    tasks: Sequence[Callable[[Report | None], T]],
    executor: Executor | str | None,
    *,
    length: int,
    unit: str,
    description: str,
    progress_bar: bool | None = None,
    on_result: Callable[[int, T], None] | None = None,
) -> list[T]:
    """Run tasks and return their results in order; a failure or Ctrl-C cancels the others.

    Parameters
    ----------
    tasks
        Called with a function to report the number of steps done, or None.
    executor
        An executor, which is left open, or a name for `zoo.infer.tasks.executor.make_executor`.
    length, unit, description, progress_bar
        Steps of one task; unit and title of the bar; whether to show it, by default on a terminal.
    on_result
        Called in this process with index and result of every finished task.
    """
    hidden = None if progress_bar is None else not progress_bar
    seen = on_result or (lambda index, result: None)
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=length * len(tasks), disable=hidden, unit=unit, desc=description) as bar,
        _opened(executor, len(tasks)) as pool,
    ):
        if isinstance(pool, SerialExecutor):
            results = []
            for index, task in enumerate(tasks):
                report = partial(_advance, bar, index * length)
                results.append(pool.submit(task, report).result())
                seen(index, results[-1])
            return results
        notes = [ProgressNote(Path(folder) / str(index)) for index in range(len(tasks))]
        futures: list[Future[T]] = []
        try:
            for task, note in zip(tasks, notes, strict=True):
                futures.append(pool.submit(task, None if bar.disable else note))
            _watch(futures, notes, bar, length, seen)
        except BrokenExecutor:
            raise ZooError(
                "a worker process was killed, perhaps because it ran out of memory. Use fewer "
                "processes, for example with the executor 'processes:1'."
            ) from None
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]


def _watch(
    futures: list[Future[T]],
    notes: list[ProgressNote],
    bar: "tqdm[Any]",
    length: int,
    seen: Callable[[int, T], None],
) -> None:
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, NOTE_SECONDS, return_when=FIRST_COMPLETED)
        for index, future in enumerate(futures):
            if future in finished:
                seen(index, future.result())  # raises if the task failed
        done = sum(
            length if future.done() else note.read()
            for future, note in zip(futures, notes, strict=True)
        )
        _advance(bar, 0, done)


def _advance(bar: "tqdm[Any]", offset: int, done: int) -> None:
    bar.update(offset + done - bar.n)


def _opened(executor: Executor | str | None, num_tasks: int) -> AbstractContextManager[Executor]:
    """Return the executor, which is closed at the end if it was made here."""
    if isinstance(executor, Executor):
        return nullcontext(executor)
    return make_executor(executor, num_tasks)
