"""Settings every test runs under: one torch thread, and no global state left behind."""

import os

import pyro
import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Warnings that torch gives once per process would be errors in whichever test comes first.
torch.set_warn_always(True)


@pytest.fixture(autouse=True)
def _clean_slate():
    """Seed every test alike and forget what it put into Pyro's global store."""
    pyro.clear_param_store()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    pyro.clear_param_store()
