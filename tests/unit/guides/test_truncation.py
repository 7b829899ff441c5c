"""Integrals and quantiles of a normal on an interval, against arbitrary precision."""

import mpmath
import pytest
import torch
from scipy import stats

from guides.truncation import (
    ImplicitDraw,
    log_kernel_at,
    quantile_and_derivatives,
    window_of,
)

FALSE_ALARM_RATE = 2e-5

#: loc, scale, low, high
CASES = {
    "inside": (0.4, 0.7, -0.3, 2.9),
    "inside, nearer to the other bound": (1.9, 0.7, -0.3, 2.9),
    "inside a wide window": (-3.0, 0.5, -20.0, 0.0),
    "inside, next to the lower bound": (-0.299, 0.7, -0.3, 2.9),
    "inside a window that is flat": (0.5, 40.0, -1.0, 3.0),
    "on the lower bound": (-0.3, 0.7, -0.3, 2.9),
    "on the upper bound": (2.9, 0.7, -0.3, 2.9),
    "on the upper bound of a wide window": (0.0, 1.0, -100.0, 0.0),
    "left": (-1.0, 0.7, -0.3, 2.9),
    "right": (3.5, 0.7, -0.3, 2.9),
    "right of a flat window": (5.0, 40.0, -1.0, 3.0),
    "far left": (-30.0, 0.7, -0.3, 2.9),
    "far right": (30.0, 0.7, -0.3, 2.9),
    "so far right that the cdf underflows": (5.0, 1e-3, -20.0, 0.0),
}
LEVELS = [1e-15, 1e-6, 0.01, 0.3, 0.5, 0.8, 0.999]

case = pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())


def tensors(parameters, like=None):
    shape = () if like is None else like.shape
    return [torch.full(shape, value, dtype=torch.float64) for value in parameters]


@pytest.fixture(autouse=True)
def _sixty_digits():
    with mpmath.workdps(60):
        yield


def mass(low, high):
    """The probability of a standard normal between two numbers."""
    if low + high > 0:
        low, high = -high, -low
    root = mpmath.sqrt(2)
    return (mpmath.erfc(-high / root) - mpmath.erfc(-low / root)) / 2


def cdf(x, loc, scale, low, high):
    alpha = (low - loc) / scale
    return mass(alpha, (x - loc) / scale) / mass(alpha, (high - loc) / scale)


def density(x, loc, scale, low, high):
    total = mass((low - loc) / scale, (high - loc) / scale)
    return mpmath.npdf((x - loc) / scale) / (scale * total)


def log_density(x, loc, scale):
    return -(((x - loc) / scale) ** 2) / 2


def number(tensor):
    return mpmath.mpf(float(tensor))


def exact(parameters):
    return [mpmath.mpf(value) for value in parameters]


@case
def test_window_holds_the_mass_relative_to_its_highest_point(parameters):
    loc, scale, low, high = parameters
    window = window_of(*tensors(parameters))
    anchor = min(max(loc, low), high)
    assert float(window.anchor) == anchor
    assert float(window.shift) == anchor - loc
    loc, scale, low, high = exact(parameters)
    expected = mpmath.log(mass((low - loc) / scale, (high - loc) / scale))
    expected += mpmath.log(scale * mpmath.sqrt(2 * mpmath.pi))
    expected -= log_density(mpmath.mpf(anchor), loc, scale)
    assert float(window.log_mass) == pytest.approx(float(expected), rel=1e-12, abs=1e-13)


@case
def test_window_expects_what_integrals_do(parameters):
    window = window_of(*tensors(parameters))
    loc, scale, low, high = exact(parameters)
    alpha, beta = (low - loc) / scale, (high - loc) / scale
    ends = [mpmath.npdf(end) / mass(alpha, beta) for end in (alpha, beta)]
    mean = loc + scale * (ends[0] - ends[1]) - number(window.anchor)
    square = scale**2 * (1 + alpha * ends[0] - beta * ends[1] - (ends[0] - ends[1]) ** 2) + mean**2
    found = [float(window.expect(moment)) for moment in (window.offset, window.offset**2)]
    assert found == pytest.approx([float(mean), float(square)], rel=1e-10, abs=1e-13)


@case
def test_kernel_is_the_log_density_relative_to_the_anchor(parameters):
    loc, scale = exact(parameters)[:2]
    window = window_of(*tensors(parameters))
    for share in (0.0, 0.2, 0.9, 1.0):
        value = parameters[2] + share * (parameters[3] - parameters[2])
        found = log_kernel_at(torch.tensor(value, dtype=torch.float64), window, float(scale))
        expected = log_density(mpmath.mpf(value), loc, scale)
        expected -= log_density(number(window.anchor), loc, scale)
        assert float(found) == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
    nodes = zip(window.offset[::7], window.log_kernel[::7], strict=True)
    for offset, kernel in nodes:
        expected = log_density(number(window.anchor) + number(offset), loc, scale)
        expected -= log_density(number(window.anchor), loc, scale)
        assert float(kernel) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@case
def test_the_cdf_at_a_quantile_is_its_level(parameters):
    u = torch.tensor(LEVELS, dtype=torch.float64)
    drawn = quantile_and_derivatives(u, *tensors(parameters, u)).value
    low, high = parameters[2:]
    for level, value in zip(LEVELS, drawn, strict=True):
        assert low <= float(value) <= high
        # Quantiles are sums of the bounds and of multiples of the scale: eight roundings of them.
        rounding = 8 * 2.0**-52 * max(abs(low), abs(high), parameters[1])
        slope = density(number(value), *exact(parameters))
        found = float(cdf(number(value), *exact(parameters)))
        assert found == pytest.approx(level, rel=1e-9, abs=float(slope) * rounding)


@case
def test_derivatives_of_a_quantile_are_those_of_the_implicit_function(parameters):
    r""":math:`dx / d\theta = -F_\theta / F_x` for each of the four parameters."""
    u = torch.tensor([0.01, 0.3, 0.5, 0.8, 0.99], dtype=torch.float64)
    draw = quantile_and_derivatives(u, *tensors(parameters, u))
    for index, level in enumerate(u.tolist()):
        x = number(draw.value[index])
        for _ in range(4):  # Newton's method doubles the ten digits that are right
            x -= (cdf(x, *exact(parameters)) - level) / density(x, *exact(parameters))
        point = (x, *exact(parameters))
        orders = torch.eye(5, dtype=torch.int).tolist()
        slopes = [mpmath.diff(cdf, point, tuple(order)) for order in orders]
        for name, slope in zip(draw._fields[1:], slopes[1:], strict=True):
            found, expected = float(getattr(draw, name)[index]), float(-slope / slopes[0])
            assert found == pytest.approx(expected, rel=1e-8, abs=1e-11), name


@case
def test_draws_follow_the_exact_cdf(parameters):
    number_of_draws = 4000
    u = torch.rand(number_of_draws, dtype=torch.float64)
    draws = quantile_and_derivatives(u, *tensors(parameters, u)).value.sort().values
    exact_cdf = torch.tensor([float(cdf(number(x), *exact(parameters))) for x in draws])
    assert stats.kstest(exact_cdf.numpy(), "uniform").pvalue > FALSE_ALARM_RATE


@pytest.mark.parametrize("name", ["inside", "left", "right"])
def test_ends_of_the_unit_interval_are_the_ends_of_the_window(name):
    ends = CASES[name][2:]
    u = torch.tensor([0.0, 1.0], dtype=torch.float64)
    value = quantile_and_derivatives(u, *tensors(CASES[name], u)).value
    for found, end in zip(value.tolist(), ends, strict=True):
        # Levels are kept 2**-60 away from zero and one; 1e-13 is the rounding of torch's ndtri.
        allowed = 1.1 * 2.0**-60 / float(density(mpmath.mpf(end), *exact(CASES[name])))
        assert found == pytest.approx(end, rel=1e-13, abs=allowed)


def test_cases_in_one_call_do_not_disturb_each_other():
    together = [torch.tensor(column, dtype=torch.float64) for column in zip(*CASES.values())]  # noqa: B905
    u = torch.full_like(together[0], 0.3)
    value = quantile_and_derivatives(u, *together).value
    for index, parameters in enumerate(CASES.values()):
        alone = quantile_and_derivatives(u[:1], *tensors(parameters, u[:1])).value
        assert float(value[index]) == float(alone)


def test_an_implicit_draw_passes_its_derivatives_on():
    inputs = [torch.tensor([float(k), 10.0 + k], dtype=torch.float64) for k in range(5)]
    parameters = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    value = ImplicitDraw.apply(*inputs, *parameters)
    assert value.tolist() == inputs[0].tolist()
    gradients = torch.autograd.grad(value, parameters, torch.tensor([2.0, 3.0]).double())
    for gradient, derivative in zip(gradients, inputs[1:], strict=True):
        assert gradient.tolist() == (derivative * torch.tensor([2.0, 3.0])).tolist()
