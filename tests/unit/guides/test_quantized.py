import math

import pytest
import torch
from scipy import optimize

from guides.quantized import QuantizedGuide, fitted_size, nearest

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")
TERNARY = [-0.2, 0.0, 0.2]


def posterior(loc, scale, codebook=TERNARY):
    words = torch.tensor(codebook)
    guide = QuantizedGuide("w", torch.tensor(loc), codebook=words, init_scale=0.01)
    with torch.no_grad():
        guide.base.log_scale.copy_(torch.tensor(scale).log())
    return guide


@pytest.mark.parametrize("stretch", [1.0, 0.1, 7.0])
def test_a_weight_becomes_zero_or_its_nearest_code_word(stretch):
    # The fourth is nearest to 0.2, but its log alpha is 2 log(0.9 / 0.15) = 3.6; the fifth has 2.9.
    loc, scale = [0.19, -0.5, 0.08, 0.15, 0.15, -0.11], [0.01, 0.01, 0.01, 0.9, 0.64, 0.01]
    guide = posterior(
        [stretch * x for x in loc], [stretch * x for x in scale], [stretch * c for c in TERNARY]
    )
    expected = stretch * torch.tensor([0.2, -0.2, 0.0, 0.0, 0.2, -0.2])
    torch.testing.assert_close(guide.quantized(), expected)


def test_pruning_is_where_the_log_of_alpha_reaches_three():
    sigma = 0.5
    edge = sigma * math.exp(-1.5)
    guide = posterior([edge * 0.999, edge * 1.001], [sigma, sigma], [-0.1, 0.0, 0.1])
    assert guide.quantized().tolist() == [0.0, 0.1]


def test_the_assignment_has_the_largest_density_of_the_posterior():
    loc = torch.linspace(-0.5, 0.5, 101)
    words = torch.tensor([-0.3, 0.0, 0.1, 0.35])
    density = torch.distributions.Normal(loc, 0.02).log_prob(words.unsqueeze(-1))
    assert torch.equal(nearest(loc, words), density.argmax(0))


@pytest.mark.parametrize("size", [0.2, 0.02])
def test_location_and_scale_stay_in_the_published_range(size):
    stretch = size / 0.2
    guide = posterior([3.0, -3.0, 0.01], [1e-9, 1e9, 0.05], [-size, 0.0, size])
    guide.constrain()
    scale = guide.base.log_scale.detach().exp() / stretch
    # log variances of -10 and 1 at a codebook of 0.2
    smallest, largest = math.exp(-5.0), math.exp(0.5)
    torch.testing.assert_close(
        scale, torch.tensor([smallest, largest, 0.05 / stretch]).clamp(smallest, largest)
    )
    loc = guide.base.loc.detach() / stretch
    share = math.exp(-1.5)
    expected = [0.2 + share * smallest, -0.2 - share * largest, 0.01 / stretch]
    torch.testing.assert_close(loc, torch.tensor(expected))


def test_restart_puts_the_scale_of_the_start_relative_to_the_codebook():
    guide = posterior([0.0, 1.0], [1e-6, 1e-6], [-0.4, 0.0, 0.4])
    guide.restart()
    torch.testing.assert_close(guide.base.log_scale.detach().exp(), torch.full((2,), 0.02))
    assert guide.base.loc.detach().max() < 0.41


@pytest.mark.parametrize("words", [[-1.0, 0.0, 1.0], [-2.0, -1.0, 0.0, 1.0, 2.0], [0.0, 0.5]])
def test_fitted_size_minimises_the_distance_to_the_code_words(words):
    values = torch.randn(2000) * 0.05
    if min(words) == 0:
        values = values.abs()
    words = torch.tensor(words)

    def distance(size):
        scaled = size * words
        return float((values - scaled[nearest(values, scaled)]).square().sum())

    found = fitted_size(values, words)
    best = min(
        (
            optimize.minimize_scalar(distance, bounds=(low, 1.5 * low), method="bounded")
            for low in (0.01, 0.015, 0.022, 0.033, 0.05, 0.075, 0.11)
        ),
        key=lambda result: result.fun,
    )
    # Lloyd's algorithm stops where no assignment changes: at most a few weights from the best.
    assert distance(float(found)) == pytest.approx(best.fun, rel=1e-3)


def test_weights_that_are_zero_leave_the_code_words_alone():
    assert fitted_size(torch.zeros(5), torch.tensor(TERNARY)) == 1
