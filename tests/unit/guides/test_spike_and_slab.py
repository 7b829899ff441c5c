"""Spike and slab: density, divergence, moments and gradients of weights that may be zero."""

import math

import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import Normal, kl_divergence

import zoo
from guides.spike_and_slab import SpikeAndSlabGuide, SwitchedNormal
from zoo.errors import ConfigError
from zoo.infer.svi.objective import Objective, total_divergence
from zoo.likelihoods import parse_likelihood
from zoo.network.nets import mlp

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")
LOG_ODDS = torch.tensor([[-3.0, -0.4, 0.0, 1.2, 5.0]], dtype=torch.float64)
NUM_DRAWS = 200_000


def switched(log_odds=LOG_ODDS, loc=0.5, scale=0.3, temperature=0.5):
    """Return two weights for each of five switches."""
    shape = torch.ones(2, 5)
    numbers = (log_odds, loc * shape, scale * shape, torch.tensor(temperature))
    return SwitchedNormal(*numbers, event_dim=2)


def guide(group_shape=(1, 5), **options):
    init = torch.linspace(-1, 1, 10).reshape(2, 5)
    made = SpikeAndSlabGuide(
        "w", init, group_shape=torch.Size(group_shape), init_scale=0.3, **options
    )
    with torch.no_grad():
        made.log_odds.copy_(LOG_ODDS + torch.arange(group_shape[0]).unsqueeze(1))
    return made


def fit_of_three_switches(priors=None):
    net, likelihood = mlp([3, 2]).double(), parse_likelihood("categorical").double()
    priors = priors or {"0.weight": "SpikeAndSlab(inclusion=0.2, scale=2, group=input)"}
    model = zoo.create("spike_and_slab", net, likelihood=likelihood, num_data=9, priors=priors)
    return model, model.guide(init_scale=0.3)


@pytest.mark.parametrize("temperature", [0.1, 2.0])
def test_groups_are_on_with_their_probability_at_any_temperature(temperature):
    draws = switched(temperature=temperature).sample((NUM_DRAWS,))
    is_on = draws != 0
    assert torch.equal(is_on[:, 0], is_on[:, 1])  # both weights of a group
    p = torch.sigmoid(LOG_ODDS[0])
    error = 5 * (p * (1 - p) / NUM_DRAWS).sqrt()
    assert ((is_on[:, 0].double().mean(0) - p).abs() < error).all()


def test_a_draw_is_the_location_plus_the_scaled_noise_of_its_seed():
    always = torch.full((1, 5), 100.0)
    torch.manual_seed(3)
    draws = switched(always).sample((4,))
    torch.manual_seed(3)
    for _ in range(2):  # the two of the switches come first
        torch.empty(4, 1, 5).exponential_()
    torch.testing.assert_close(draws, 0.5 + 0.3 * torch.randn(4, 2, 5))


def test_density_is_that_of_zero_or_a_normal():
    value = torch.tensor([[0.0, 0.2, 0.0, -0.3, 0.0], [0.0, 0.7, 0.0, 0.4, 0.0]])
    normal = Normal(0.5, 0.3).log_prob(value).sum(0)
    on, off = torch.sigmoid(LOG_ODDS[0]).log(), torch.sigmoid(-LOG_ODDS[0]).log()
    expected = off[0] + (on + normal)[1] + off[2] + (on + normal)[3] + off[4]
    torch.testing.assert_close(switched().log_prob(value), expected)
    many = torch.stack([value, torch.zeros(2, 5)])
    torch.testing.assert_close(switched().log_prob(many), torch.stack([expected, off.sum()]))


def test_divergence_is_the_sum_over_switches_and_the_integral_behind_them():
    q, prior = switched(), switched(torch.full((1, 5), -1.0), loc=0.0, scale=2.0)
    w = torch.linspace(0.5 - 0.3 * 12, 0.5 + 0.3 * 12, 20_001)
    normals = Normal(0.5, 0.3).log_prob(w), Normal(0.0, 2.0).log_prob(w)
    behind = 2 * torch.trapezoid(normals[0].exp() * (normals[0] - normals[1]), w)
    p, pi = torch.sigmoid(LOG_ODDS[0]), torch.sigmoid(torch.tensor(-1.0))
    switches = p * (p / pi).log() + (1 - p) * ((1 - p) / (1 - pi)).log()
    exact = (switches + p * behind).sum()
    torch.testing.assert_close(kl_divergence(q, prior), exact)
    values = q.sample((NUM_DRAWS,))
    terms = q.log_prob(values) - prior.log_prob(values)
    assert abs(float(terms.mean() - exact)) < 5 * float(terms.std()) / math.sqrt(NUM_DRAWS)


@pytest.mark.parametrize("group_shape", [(1, 5), (2, 5)])
def test_moments_of_the_weights_are_those_of_draws(group_shape):
    made = guide(group_shape)
    with torch.no_grad():
        weights = made.draw(NUM_DRAWS)["w"]
        mean, variance = made.weight_moments()
    assert ((weights.mean(0) - mean).abs() < 5 * (variance / NUM_DRAWS).sqrt()).all()
    fourth = (weights - mean).pow(4).mean(0)
    assert ((weights.var(0) - variance).abs() < 5 * (fourth / NUM_DRAWS).sqrt()).all()


def test_groups_that_are_more_probably_off_are_pruned():
    made = guide()
    pruned = made.group_scores() > made.default_threshold
    assert pruned.tolist() == [True, True, False, False, False]
    assert (made.medians()["w"][:, :2] == 0).all()
    torch.testing.assert_close(made.medians()["w"][:, 3:], made.w.loc.detach()[:, 3:])


def test_temperature_follows_the_training_in_a_buffer():
    made = guide(schedule="geometric", start=1.0, end=0.01)
    buffer = made.log_temperature
    for progress, expected in ((0.0, 1.0), (0.5, 0.1), (1.0, 0.01)):
        made.advance(progress)
        assert made.log_temperature is buffer
        assert float(buffer.exp()) == pytest.approx(expected)


@pytest.mark.parametrize(("temperature", "is_biased"), [(1.0, True), (0.02, False)])
def test_the_bias_of_gradients_vanishes_with_the_temperature(temperature, is_biased):
    """Of E (s v - 1)^2 = p (mu^2 - 2 mu + sigma^2) + 1, whose gradient in p is known."""
    log_odds = torch.full((1, 1), 1.0, requires_grad=True)
    numbers = (torch.full((1, 1), 1.5), torch.full((1, 1), 0.1), torch.tensor(temperature))
    draws = SwitchedNormal(log_odds, *numbers, event_dim=2).rsample((1_000_000,))
    (draws - 1).square().mean().backward()
    p = torch.sigmoid(log_odds.detach())
    exact = p * (1 - p) * (1.5**2 - 2 * 1.5 + 0.1**2)
    gap = abs(float(log_odds.grad - exact))
    assert (gap > 0.1) == is_biased
    assert is_biased or gap < 0.02


def test_loss_has_the_mean_of_the_elbo_over_all_switches():
    """Eight combinations of three switches, each weighted by its probability."""
    model, posterior = fit_of_three_switches()
    x, y = torch.randn(9, 3), torch.arange(9) % 2
    part = posterior["0.weight"]
    with torch.no_grad():
        part.log_odds.copy_(torch.tensor([[0.3, -0.5, 1.0]]))
        for site in (part.w, posterior["0.bias"]["0.bias"]):
            site.log_scale.fill_(-20.0)  # only the switches are random
        expected = total_divergence(model, posterior)
        p, bias = torch.sigmoid(part.log_odds[0]), posterior.medians()["0.bias"]
        for bits in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3):
            outputs = torch.log_softmax(x @ (part.w.loc * bits).T + bias, -1)
            probability = torch.where(bits > 0, p, 1 - p).prod()
            expected -= float(probability * outputs.gather(1, y.unsqueeze(1)).sum())
        objective = Objective(model, posterior)
        losses = torch.stack([objective(x, y) for _ in range(400)])
    assert abs(float(losses.mean()) - expected) < 5 * float(losses.std()) / math.sqrt(400)


def test_what_is_sampled_instead_is_relaxed():
    model, _ = fit_of_three_switches()
    proper = model.proper().prior("0.weight")
    assert type(proper).__name__ == "RelaxedSpikeAndSlab"
    assert (proper.inclusion, proper.scale, proper.group) == (0.2, 2.0, "input")
    assert proper.proper() is None


def test_relaxed_switches_are_on_with_the_probability_of_the_prior():
    text = "RelaxedSpikeAndSlab(inclusion=0.2, scale=2, group=input, temperature=0.3)"
    model, relaxed = fit_of_three_switches({"0.weight": text})
    prior = model.prior("0.weight")
    assert set(relaxed.medians()) >= {"0.weight_inclusion", "0.weight_slab"}
    sites = [poutine.trace(prior).get_trace().nodes for _ in range(2000)]
    share = torch.stack([nodes["0.weight_inclusion"]["value"] > 0 for nodes in sites])
    assert abs(float(share.double().mean()) - 0.2) < 5 * math.sqrt(0.16 / share.numel())


def test_a_guide_that_never_draws_zero_is_refused():
    model, _ = fit_of_three_switches()
    with pytest.raises(ConfigError, match="zero with some probability"):
        model.method.full_rank_guide(model, 0.1)
