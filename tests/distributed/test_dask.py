"""Two Dask workers give the bits of the serial executor, and one that dies loses nothing."""

import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import zoo
from zoo.errors import ConfigError
from zoo.infer.nuts.sampler import sample_nuts
from zoo.infer.tasks.running import run_tasks


def unavailable(reason):
    if os.environ.get("ZOO_REQUIRE_ALL_DEPS") == "1":
        pytest.fail(f"{reason}, but ZOO_REQUIRE_ALL_DEPS=1 asks for it")
    pytest.skip(f"{reason}: the cluster is not tested")


@pytest.fixture(scope="module")
def address():
    try:
        from distributed import LocalCluster
    except ImportError:
        unavailable("Dask is not installed")
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


def model(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("obs", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def test_chains_have_the_bits_of_serial_ones(address):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    y = x.sum(1) + torch.randn(20, generator=generator, dtype=torch.float64)
    # Recorded but not compiled: each of three processes would wait for the compiler.
    serial, remote = (
        sample_nuts(
            model,
            (x, y),
            num_chains=2,
            num_warmup=100,
            num_samples=100,
            executor=executor,
            compiled=False,
            progress_bar=False,
        )
        for executor in ("serial", address)
    )
    assert not np.array_equal(serial.values["w"][0], serial.values["w"][1])
    np.testing.assert_array_equal(remote.values["w"], serial.values["w"])
    for name, values in serial.stats.items():
        np.testing.assert_array_equal(remote.stats[name], values, err_msg=name)


def test_restarts_have_the_bits_of_serial_ones(address):
    options = {"num_steps": 30, "num_samples": 10, "restarts": 2, "progress_bar": False}
    serial, remote = (
        zoo.fit("mean_field", data="linear", net="linear", executor=executor, **options).restarts
        for executor in ("serial", address)
    )
    for ours, theirs in zip(remote, serial, strict=True):
        assert (ours.start, ours.elbo, ours.elbo_error) == (
            theirs.start,
            theirs.elbo,
            theirs.elbo_error,
        )
        for name in ("outputs_mean", "outputs_sd", "log_density"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def meet(folder, number, report):
    """Wait for the other task, which must therefore run at the same time; return the process."""
    (folder / str(number)).touch()
    for _ in range(600):
        if len(list(folder.iterdir())) == 2:
            return os.getpid()
        threading.Event().wait(0.1)
    raise TimeoutError


def test_tasks_run_side_by_side_in_two_processes(address, tmp_path):
    tasks = [partial(meet, tmp_path, number) for number in range(2)]
    seen = []
    found = run_tasks(
        tasks,
        address,
        length=1,
        unit="task",
        description="",
        progress_bar=False,
        on_result=lambda index, result: seen.append((index, result)),
    )
    assert len({*found, os.getpid()}) == 3
    assert sorted(seen) == list(enumerate(found))


def die_once(path, report):
    """Take the worker down the first time."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_a_worker_that_dies_loses_nothing(address, tmp_path):
    tasks = [partial(die_once, tmp_path / "first")]
    found = run_tasks(tasks, address, length=1, unit="task", description="", progress_bar=False)
    assert found == ["done"]


def test_a_scheduler_that_does_not_answer_is_explained(monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed")
    monkeypatch.setattr("zoo.infer.tasks.cluster.CONNECT_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        sample_nuts(model, (torch.ones(2, 2), torch.ones(2)), executor="tcp://127.0.0.1:1")


def noise(seed):
    torch.manual_seed(seed)
    return [float(torch.randn(())) for _ in range(200)]


def test_threads_of_one_worker_do_not_share_random_numbers():
    pytest.importorskip("distributed", reason="Dask is not installed")
    from zoo.infer.tasks.cluster import run_alone

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: run_alone(pickle.dumps((noise, (seed,), {}))), range(8)))
    assert found == [noise(seed) for seed in range(8)]
