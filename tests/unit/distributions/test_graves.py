import pytest
import torch
from distribution_oracles import assert_near, number, rows
from torch.distributions import Normal, kl_divergence

from zoo.distributions import graves_prior, graves_relevance


@pytest.mark.parametrize("row", rows("graves", "prior_var"), ids=lambda row: "block")
def test_greedy_prior_matches_the_reference_and_is_optimal(row):
    loc, scale = torch.tensor(row["mu"]), torch.tensor(row["sigma"])
    mean, variance = graves_prior(loc, scale)
    assert_near(mean, number(row["prior_mean"]))
    assert_near(variance, number(row["prior_var"]))
    guide = Normal(loc, scale)
    best = kl_divergence(guide, Normal(mean, variance.sqrt())).sum()
    assert_near(best, 0.5 * (variance / scale.square()).log().sum())
    for shift, factor in ((0.01, 1.0), (-0.01, 1.0), (0.0, 1.05), (0.0, 0.95)):
        other = Normal(mean + shift, variance.sqrt() * factor)
        assert kl_divergence(guide, other).sum() > best


@pytest.mark.parametrize("row", rows("graves", "lam"), ids=lambda row: f"{row['mu']}")
def test_relevance_matches_the_reference_and_is_a_density_ratio(row):
    loc, scale = torch.tensor(row["mu"]), torch.tensor(row["sigma"])
    assert_near(graves_relevance(loc, scale), number(row["lam"]))
    guide = Normal(loc, scale)
    ratio = guide.log_prob(torch.tensor(0.0)) - guide.log_prob(loc)
    assert_near(graves_relevance(loc, scale), ratio.exp())


@pytest.mark.parametrize("row", rows("graves", "lambda_threshold"), ids=lambda row: "threshold")
def test_threshold_is_one_on_the_ratio_of_mean_to_deviation(row):
    ratio = torch.tensor(number(row["abs_mu_over_sigma"]))
    assert_near(graves_relevance(ratio, torch.tensor(1.0)), row["lambda_threshold"])
