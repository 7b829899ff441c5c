"""Ctrl-C while chains run in other processes ends all of them, in every phase."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A model that would take hours, so that only the interrupt can end it.
SCRIPT = """
import pyro, pyro.distributions as dist, torch
from zoo.infer.nuts.sampler import sample_nuts

def model():
    pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))

sample_nuts(
    model, num_chains=2, num_samples=50_000_000, executor="processes:2", progress_bar=True
)
"""
GRACE = 30.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by /proc"),
]


def members(session):
    """Return the living processes of a session, by their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, session_id = fields[0], int(fields[3])
        if session_id == session and state != "Z":
            found[int(folder.name)] = command
    return found


def workers(session):
    return [pid for pid, command in members(session).items() if "spawn_main" in command]


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} took more than {seconds} s"
        time.sleep(0.1)


@pytest.fixture
def sampling(tmp_path):
    log = tmp_path / "stderr"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stderr=stderr, env=environment, start_new_session=True
        )
    yield process, log
    if process.poll() is None or members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_grace_is_for_busy_machines_and_a_worker_is_seen(sampling):
    """The test would see an orphan: killing only the parent leaves none unseen."""
    process, _ = sampling
    wait_until(lambda: len(workers(process.pid)) == 2, 200, "starting workers")
    assert process.pid in members(process.pid)


@pytest.mark.parametrize("phase", ["starting", "drawing"])
@pytest.mark.parametrize("target", ["group", "parent"])
def test_interrupt_ends_parent_and_workers(sampling, phase, target):
    process, log = sampling
    if phase == "starting":
        wait_until(lambda: len(workers(process.pid)) == 2, 200, "starting workers")
    else:
        wait_until(lambda: re.search(rb"[1-9]\d*/1\d{8}", log.read_bytes()), 280, "drawing")
    {"group": os.killpg, "parent": os.kill}[target](process.pid, signal.SIGINT)
    process.wait(GRACE)
    assert process.returncode == -signal.SIGINT
    wait_until(lambda: not members(process.pid), GRACE, "ending the workers")
    assert log.read_text().count("KeyboardInterrupt") == 1, log.read_text()
