"""Guides in which every weight is a group of its own: sparse VD, empirical Bayes, Graves."""

import math

import pytest
import torch

from guides.empirical_bayes import EmpiricalBayesGuide
from guides.graves import GravesGuide
from guides.sparse_vd import SparseVDGuide

pytestmark = pytest.mark.usefixtures("double_precision")

GUIDES = [SparseVDGuide, EmpiricalBayesGuide, GravesGuide]
#: |mean| / sd at which log alpha is 3, and at which the relative density at zero is 0.83.
AT_ALPHA_3, AT_RELEVANCE_83 = math.exp(-1.5), 0.61045815285159956


def build(cls, init=None, **options):
    init = torch.randn(2, 3) if init is None else init
    return cls("w", init, **options)


@pytest.mark.parametrize("cls", GUIDES)
def test_starts_where_it_is_told(cls):
    start = torch.randn(2, 3)
    mean, variance = build(cls, start, init_scale=0.07).weight_moments()
    torch.testing.assert_close(mean, start, rtol=1e-9, atol=0)
    torch.testing.assert_close(variance, torch.full((2, 3), 0.07**2), rtol=1e-9, atol=0)


@pytest.mark.parametrize("cls", GUIDES)
def test_every_weight_has_a_score(cls):
    guide = build(cls)
    assert guide.group_shape == (2, 3)
    assert guide.group_scores().shape == (6,)
    assert guide.group_scores().dtype == torch.float64


@pytest.mark.parametrize("cls", GUIDES)
def test_draws_have_the_moments_of_the_guide(cls):
    guide = build(cls, init_scale=0.3)
    torch.manual_seed(0)
    drawn = guide.draw(100_000)["w"].detach()
    mean, variance = (moment.detach() for moment in guide.weight_moments())
    assert ((drawn.mean(0) - mean).abs() < 5 * (variance / 1e5).sqrt()).all()
    # the variance of a normal sample's variance is 2 v² / n
    assert ((drawn.var(0) - variance).abs() < 5 * variance * (2 / 1e5) ** 0.5).all()


@pytest.mark.parametrize(
    ("cls", "ratio"),
    [
        (SparseVDGuide, AT_ALPHA_3),
        (EmpiricalBayesGuide, AT_ALPHA_3),
        (GravesGuide, AT_RELEVANCE_83),
    ],
)
def test_threshold_is_the_ratio_of_mean_to_sd_that_it_stands_for(cls, ratio):
    sides = torch.tensor([[1 - 1e-6, 1 + 1e-6, 0.0], [-1 + 1e-6, -1 - 1e-6, 10.0]])
    guide = build(cls, 0.2 * ratio * sides, init_scale=0.2)
    is_noise = guide.group_scores() > guide.default_threshold
    assert is_noise.tolist() == [True, False, True, True, False, False]


@pytest.mark.parametrize(
    ("mu", "sigma", "relevance"), [(0.3, 0.2, 0.32465246735834973), (0.05, 0.1, 0.8824969025845954)]
)
def test_relevance_equals_the_reference_values(mu, sigma, relevance):
    scores = build(GravesGuide, torch.full((2, 3), mu), init_scale=sigma).group_scores()
    torch.testing.assert_close(scores, torch.full((6,), relevance), rtol=1e-9, atol=0)


def test_scores_of_the_two_rules_correspond():
    # log alpha = 3 is a relative density at zero of exp(-exp(-3) / 2)
    start = torch.full((2, 3), AT_ALPHA_3)
    relevance = build(GravesGuide, start, init_scale=1.0).group_scores()
    expected = torch.full((6,), math.exp(-0.5 * math.exp(-3)))
    torch.testing.assert_close(relevance, expected, rtol=1e-9, atol=0)
    assert relevance[0].item() == pytest.approx(0.97541, abs=5e-6)


# rho, gamma, sigma, mu: computed with 30 digits.
RATIOS = [
    (-3.0, 0.5, 0.048587351573742059, 0.024293675786871029),
    (0.0, -2.0, 0.69314718055994531, -1.3862943611198906),
    (2.0, 1.0, 2.1269280110429725, 2.1269280110429725),
]


@pytest.mark.parametrize(("rho", "gamma", "sigma", "mu"), RATIOS)
def test_softplus_parameterisation_equals_the_reference_values(rho, gamma, sigma, mu):
    guide = build(EmpiricalBayesGuide)
    with torch.no_grad():
        guide["w"].rho.fill_(rho)
        guide["w"].gamma.fill_(gamma)
    mean, variance = guide.weight_moments()
    torch.testing.assert_close(mean, torch.full((2, 3), mu), rtol=1e-9, atol=0)
    torch.testing.assert_close(variance, torch.full((2, 3), sigma**2), rtol=1e-9, atol=0)
    score = guide.group_scores()[0].item()
    assert score == pytest.approx(-2 * math.log(abs(gamma)), abs=1e-9)
