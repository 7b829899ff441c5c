"""Executors of independent tasks: this process, processes of this machine, or a Dask cluster."""

import contextlib
import importlib.util
import multiprocessing
import os
import re
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

from zoo.errors import ConfigError

#: Seconds that stopped workers have to save their state.
GRACE_SECONDS = 30.0

T = TypeVar("T")


class SerialExecutor(Executor):
    """Runs each task in this process when it is submitted."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a task; an interrupt is raised at once."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


_SPAWNING = threading.Lock()


class Processes(ProcessPoolExecutor):
    """Fresh processes, each with one torch thread.

    They are spawned, because forking a process with threads may hang. They do not import the
    caller's main script, which needs no ``if __name__ == "__main__"``, so tasks must not be defined
    in it.
    """

    def __init__(self, num_workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        if hasattr(signal, "pthread_sigmask"):
            # Otherwise it starts with the first worker, and its start unblocks interrupts.
            resource_tracker.ensure_running()
        super().__init__(num_workers, mp_context=context, initializer=_start_worker)
        self._children: list[Any] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Send a task to a worker."""
        with _SPAWNING, _no_main_script(), _interrupts_held():
            before = set(multiprocessing.active_children())
            future = super().submit(fn, *args, **kwargs)
            self._children += set(multiprocessing.active_children()) - before
        return future

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> bool | None:
        """Wait for the tasks, or stop the workers if something was raised."""
        if kind is not None:
            self.kill()
        return super().__exit__(kind, *error)

    def kill(self) -> None:
        """Stop the workers and wait for them; a task that handles SIGTERM may save its state."""
        self.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.terminate()
        for child in self._children:
            connection.wait([child.sentinel], GRACE_SECONDS)


def _start_worker() -> None:
    import torch

    # For platforms without signal masks; elsewhere `_interrupts_held` blocks it from the start.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block interrupts within the context, and for good in processes started there.

    Ctrl-C reaches the whole process group, but the parent stops its workers: a worker interrupted
    during its imports would print its own traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _no_main_script() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_executor(spec: str | None, num_tasks: int) -> Executor:
    """Return an executor by name.

    Parameters
    ----------
    spec
        ``serial``; ``processes`` (as many as there are cores, and not more than tasks) or
        ``processes:N``; the address of a Dask scheduler, ``tcp://host:port``. By default processes,
        or serial if there is only one core or task.
    num_tasks
        Number of tasks.
    """
    cores = available_cores()
    if spec is None:
        spec = "processes" if min(cores, num_tasks) > 1 else "serial"
    check_executor(spec)
    kind, _, number = spec.partition(":")
    if kind == "serial":
        return SerialExecutor()
    if kind == "processes":
        return Processes(int(number) if number else min(cores, num_tasks))
    from zoo.infer.tasks.cluster import Cluster

    return Cluster(spec)


def check_executor(spec: str) -> None:
    """Raise a `ConfigError` if the name of an executor is unknown or Dask is not installed."""
    if spec == "serial" or re.fullmatch(r"processes(:0*[1-9]\d*)?", spec):
        return
    if not spec.startswith("tcp://"):
        raise ConfigError(
            f"unknown executor {spec!r}. Accepted: serial, processes, processes:N with N at least "
            "1, tcp://host:port of a Dask scheduler."
        )
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(f"executor {spec!r} needs Dask: pip install 'pyro-zoo[dask]'.")
