import pyro.distributions as dist
import pytest
import torch
from distribution_oracles import (
    as_tensor,
    assert_finite_with_gradients,
    assert_near,
    number,
    rows,
)
from torch.distributions import kl_divergence

from zoo.distributions import LogUniform, Quantizing, kl_log_uniform

ROWS = rows("vnq_kl", "kl_approx")


def ternary(a=0.2):
    return Quantizing(a * torch.tensor([-1.0, 0.0, 1.0]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['theta']}-{row['sigma']}")
@pytest.mark.parametrize("stretch", [1.0, 0.05, 30.0])
def test_divergence_matches_the_reference_at_every_scale(row, stretch):
    guide = dist.Normal(stretch * as_tensor(row["theta"]), stretch * as_tensor(row["sigma"]))
    kl = kl_divergence(guide, ternary(stretch * 0.2))
    assert_near(kl, number(row["kl_approx"]), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("row", rows("vnq_kl", "kl_quadrature"), ids=lambda r: r["theta"])
def test_approximation_is_within_its_published_error(row):
    guide = dist.Normal(as_tensor(row["theta"]), as_tensor(row["sigma"]))
    assert abs(kl_divergence(guide, ternary()) - number(row["kl_quadrature"])) < 1.07


def test_window_scales_with_the_codebook_unless_given():
    assert_near(ternary(0.8).tau, 0.3)
    guide = dist.Normal(torch.tensor(0.1), torch.tensor(0.05))
    codebook = torch.tensor([-0.2, 0.0, 0.2])
    given = kl_divergence(guide, Quantizing(codebook, tau=0.075))
    assert_near(given, kl_divergence(guide, ternary()))
    assert kl_divergence(guide, Quantizing(codebook, tau=0.03)) != given


def test_far_from_the_other_words_it_is_the_log_uniform_divergence():
    loc, scale = torch.tensor(0.01), torch.tensor(0.01)
    kl = kl_divergence(dist.Normal(loc, scale), Quantizing(torch.tensor([-5.0, 0.0, 5.0]), tau=0.1))
    assert_near(kl, kl_log_uniform(loc, scale))


def test_general_codebooks_attract_to_every_word():
    codebook = torch.tensor([0.4, -0.2, 0.0, 0.2])
    guide = dist.Normal(codebook, torch.tensor(0.01))
    halfway = dist.Normal(codebook + 0.1, torch.tensor(0.01))
    prior = Quantizing(codebook)
    assert (kl_divergence(guide, prior) + 1 < kl_divergence(halfway, prior)).all()


def test_heavier_words_are_cheaper_by_the_log_of_their_weight():
    codebook, weights = torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([1.0, 8.0, 1.0])
    guide = dist.Normal(torch.tensor(0.05), torch.tensor(0.1))
    even = kl_divergence(guide, Quantizing(codebook, tau=0.2))
    uneven = kl_divergence(guide, Quantizing(codebook, weights, tau=0.2))
    assert_near(even - uneven, torch.tensor(0.8 * 3).log())


def test_log_prob_is_the_logarithm_of_the_sum_of_spikes():
    w, codebook = torch.tensor([-0.3, 0.05, 7.0]), torch.tensor([-0.2, 0.0, 0.2])
    weights = torch.tensor([0.5, 0.3, 0.2])
    truth = (weights / (w.unsqueeze(-1) - codebook).abs()).sum(-1).log()
    assert_near(Quantizing(codebook, weights).log_prob(w), truth)
    # one spike only: the log-uniform prior, up to the constant
    far = torch.tensor([0.001, 0.004])
    prior = Quantizing(torch.tensor([-1e6, 0.0, 1e6]))
    assert_near(prior.log_prob(far).diff(), LogUniform().log_prob(far).diff(), rtol=1e-6)


def test_gradients_are_those_of_finite_differences_also_for_the_codebook():
    loc = torch.tensor([0.03, -0.12, 0.31], requires_grad=True)
    scale = torch.tensor([0.02, 0.1, 0.05], requires_grad=True)
    size = torch.tensor(0.2, requires_grad=True)

    def divergence(loc, scale, size):
        prior = Quantizing(torch.stack([-size, torch.zeros_like(size), size]))
        return kl_divergence(dist.Normal(loc, scale), prior)

    assert torch.autograd.gradcheck(divergence, [loc, scale, size], rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite_with_finite_gradients(dtype):
    sizes = torch.tensor([1e-8, 1e-4, 1.0, 1e4, 1e8], dtype=dtype)
    locs = torch.cat([torch.tensor([0.0, 0.2, -0.2], dtype=dtype), sizes])
    loc, scale = (x.reshape(-1) for x in torch.meshgrid(locs, sizes, indexing="ij"))
    prior = Quantizing(torch.tensor([-0.2, 0.0, 0.2], dtype=dtype))
    assert_finite_with_gradients(lambda m, s: kl_divergence(dist.Normal(m, s), prior), loc, scale)
    assert_finite_with_gradients(prior.log_prob, locs)


def test_the_naive_density_is_infinite_on_a_code_word_where_ours_is_finite():
    w, codebook = torch.tensor(0.2, requires_grad=True), torch.tensor([-0.2, 0.0, 0.2])
    naive = torch.logsumexp(-(w - codebook).abs().log(), -1)
    assert naive.isinf()
    assert torch.autograd.grad(naive, w)[0].isnan()
    ours = ternary().log_prob(w)
    assert torch.isfinite(ours)
    assert torch.isfinite(torch.autograd.grad(ours, w)[0])


@pytest.mark.parametrize(
    ("codebook", "weights", "message"),
    [
        ([-0.2, 0.2], None, "must contain 0"),
        ([0.0, 0.0, 0.2], None, "must be distinct"),
        ([0.0], None, "at least two code words"),
        ([0.0, 1.0], [1.0], "one weight per code word"),
        ([0.0, 1.0], [1.0, -1.0], "must be positive"),
    ],
)
def test_impossible_codebooks_are_refused(codebook, weights, message):
    weights = None if weights is None else torch.tensor(weights)
    with pytest.raises(ValueError, match=message):
        Quantizing(torch.tensor(codebook), weights)
