import sys
from pathlib import Path

import pyro
import pytest
import torch

# test modules are imported by path, which leaves their folder out of sys.path
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _double_precision_one_thread():
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
