"""A density as a C function gives the numbers of the model, or Python is left to call it."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import zoo
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.native import Native, NotNativeError, Program
from zoo.infer.nuts.sampler import sample_nuts

X = torch.linspace(-1.0, 1.0, 15, dtype=torch.float64).reshape(5, 3)
Y = torch.tensor([0.3, -0.2, 0.5, 1.0, -0.7], dtype=torch.float64)


def regression():
    """No matrix products: one loop of Inductor's."""
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("obs", 5):
        pyro.sample("y", dist.Normal(X @ w, sigma), obs=Y)


def batched():
    """Products of matrices, also of many at a time."""
    a = pyro.sample("a", dist.Normal(torch.zeros(2, 3, 4), 1.0).to_event(3))
    b = pyro.sample("b", dist.Normal(torch.zeros(2, 4, 3), 1.0).to_event(3))
    pyro.factor("product", -torch.tanh(torch.bmm(a, b)).square().sum())


def decomposed():
    """A determinant, which is left to torch."""
    a = pyro.sample("a", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    pyro.factor("volume", torch.linalg.slogdet(torch.eye(3) + a @ a.T).logabsdet)


def network():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    return zoo.create("mean_field", net, likelihood="gaussian", num_data=5)


def program_of(density):
    return Program(density.capture(), density.size)


def agrees_with_eager(function, density):
    for seed in range(3):
        point = np.random.default_rng(seed).normal(size=density.size)
        value, slope = function(point)
        expected, expected_slope = density.eager(point)
        assert value == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(slope, expected_slope, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("model", [regression, batched])
def test_function_in_c_has_the_values_of_the_model(model):
    density = LogDensity(model)
    function = program_of(density).function()
    assert isinstance(function, Native)
    agrees_with_eager(function, density)


def test_products_of_a_network_are_called_in_c():
    density = LogDensity(network(), (X, Y))
    function = program_of(density).function()
    assert isinstance(function, Native)
    agrees_with_eager(function, density)


def test_each_chain_has_memory_of_its_own():
    program = program_of(LogDensity(regression))
    first, second = program.function(), program.function()
    assert first.address == second.address
    written = [set(function._table[:3].tolist()) for function in (first, second)]
    assert not written[0] & written[1]


def test_what_is_not_finite_is_told_and_not_raised():
    function = program_of(LogDensity(regression)).function()
    value, _ = function(np.full(function.size, np.nan))
    assert np.isnan(value)


def test_operation_without_an_interface_in_c_is_called_from_python():
    density = LogDensity(decomposed)
    program = program_of(density)
    with pytest.raises(NotNativeError, match="it calls aten"):
        program._native()
    assert program.function() is program
    agrees_with_eager(program.function(), density)
    draws = sample_nuts(decomposed, num_chains=1, num_warmup=20, num_samples=4, executor="serial")
    assert draws.recipe["backend"] == "inductor"
