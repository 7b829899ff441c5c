import hypothesis
import pyro
import pytest
import torch

hypothesis.settings.register_profile(
    "unit", deadline=None, derandomize=True, database=None, max_examples=200
)
hypothesis.settings.load_profile("unit")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_num_threads(threads)
    pyro.clear_param_store()


@pytest.fixture
def double_precision():
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def module_local_params():
    """Keep parameters in their modules, as every fit of the zoo does."""
    with pyro.settings.context(module_local_params=True):
        yield
