"""Reference rows and checks shared by the tests of this folder."""

import json
import math
from pathlib import Path

import torch
from pyro.distributions.testing.gof import auto_goodness_of_fit

_GROUPS = json.loads((Path(__file__).parent / "reference_values.json").read_text())["groups"]
FALSE_ALARM_RATE = 2e-5


def number(value):
    """Read a decimal string, a number, or "exp(x)"."""
    if isinstance(value, str) and value.startswith("exp("):
        return math.exp(float(value[4:-1]))
    return float(value)


def rows(group, *needed):
    return [row for row in _GROUPS[group]["rows"] if all(key in row for key in needed)]


def as_tensor(value, **kwargs):
    return torch.tensor(number(value), dtype=torch.float64, **kwargs)


def assert_near(actual, expected, rtol=1e-9, atol=1e-14):
    actual = torch.as_tensor(actual).detach()
    expected = torch.as_tensor(expected, dtype=actual.dtype).detach()
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_monte_carlo(draws, truth, errors=5.0):
    """Compare a mean of independent draws with the truth, in standard errors."""
    draws = draws.detach()
    standard_error = draws.std(0) / math.sqrt(draws.shape[0])
    z = ((draws.mean(0) - truth).abs() / standard_error).max()
    assert z < errors, f"z-score {z:.2f}"


def assert_fits(distribution, num_samples=20000):
    draws = distribution.sample((num_samples,))
    fit = auto_goodness_of_fit(draws, distribution.log_prob(draws).exp())
    assert fit > FALSE_ALARM_RATE, f"goodness of fit {fit:.1e}"


def assert_finite_with_gradients(function, *parameters):
    """Evaluate, differentiate, and demand finite numbers of the right dtype everywhere."""
    parameters = [parameter.clone().requires_grad_() for parameter in parameters]
    value = function(*parameters)
    assert value.dtype == parameters[0].dtype
    assert torch.isfinite(value).all(), value
    gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
    for gradient in gradients:
        assert gradient is None or torch.isfinite(gradient).all(), gradient
