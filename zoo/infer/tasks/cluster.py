"""Tasks on the workers of a Dask cluster, as a `concurrent.futures.Executor`."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

import cloudpickle
import torch
from distributed import Client

from zoo.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
#: Seconds in which a scheduler must answer.
CONNECT_SECONDS = 10.0

_ONE_AT_A_TIME = threading.Lock()


class Cluster(Executor):
    """The workers of a Dask scheduler.

    Parameters
    ----------
    address
        ``tcp://host:port``.

    Raises
    ------
    ConfigError
        If no scheduler answers there.
    """

    def __init__(self, address: str) -> None:
        try:
            self._client = Client(address, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {address!r}: {error}.") from None
        self._executor: Executor = self._client.get_executor()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Send a task to a worker."""
        future: Future[T] = self._executor.submit(run_alone, cloudpickle.dumps((fn, args, kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the cluster, which goes on living."""
        self._executor.shutdown(wait=wait)
        self._client.close()


def run_alone(task: bytes) -> Any:
    """Run a pickled task while no other runs in this process, with one thread.

    A worker may have several threads, and torch has one state of random numbers for all of them.
    Unpickling a recorded graph also changes torch for all threads while it lasts, so Dask, which
    unpickles the next task while one is running, must see nothing but bytes.
    """
    with _ONE_AT_A_TIME:
        fn, args, kwargs = pickle.loads(task)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return fn(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)
