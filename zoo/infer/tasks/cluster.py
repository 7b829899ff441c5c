"""Tasks on the workers of a Dask cluster, as a `concurrent.futures.Executor`."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import cloudpickle
import torch
from distributed import Client

from zoo.errors import ConfigError

T = TypeVar("T")
#: Timeout of the connection to a scheduler.
CONNECT_SECONDS = 10.0

_ONE_AT_A_TIME = threading.Lock()


class Cluster(Executor):
    """The workers of a Dask scheduler at an address such as ``tcp://host:port``."""

    def __init__(self, address: str) -> None:
        try:
            self._client = Client(address, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {address!r}: {error}.") from None
        self._executor: Executor = self._client.get_executor()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Send a task to a worker."""
        return self._executor.submit(run_alone, cloudpickle.dumps((fn, args, kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect from the cluster, which keeps running."""
        self._executor.shutdown(wait=wait)
        self._client.close()


def run_alone(task: bytes) -> Any:
    """Run a pickled task alone in this process, with one thread.

    A worker may have several threads, which share the random state of torch. Unpickling a recorded
    graph also changes the state of torch for all threads. Dask, which unpickles the next task while
    one is running, therefore gets bytes.
    """
    with _ONE_AT_A_TIME:
        fn, args, kwargs = pickle.loads(task)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return fn(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)
