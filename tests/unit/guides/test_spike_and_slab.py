"""Spike and slab: switches, their divergence, moments and scores."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

import zoo
from guides.spike_and_slab import INIT_INCLUSION, SpikeAndSlabGuide
from zoo.infer.svi.objective import Objective, site_divergences
from zoo.likelihoods import parse_likelihood
from zoo.network.nets import mlp

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")
LOG_ODDS = torch.tensor([-3.0, -0.4, 0.0, 1.2, 5.0], dtype=torch.float64)


def guide(group_shape=(1, 5), corners=True, **options):
    init = torch.linspace(-1, 1, 10).reshape(2, 5)
    made = SpikeAndSlabGuide(
        "w", init, group_shape=torch.Size(group_shape), corners=corners, init_scale=0.3, **options
    )
    with torch.no_grad():
        made.inclusion.log_odds.copy_(LOG_ODDS)
    return made


def prior(text="SpikeAndSlab(inclusion=0.2, scale=2, group=input)", **options):
    net, likelihood = mlp([3, 2]).double(), parse_likelihood("categorical").double()
    priors = {"0.weight": text}
    model = zoo.create("spike_and_slab", net, likelihood=likelihood, num_data=9, priors=priors)
    return model, model.guide(init_scale=0.3)


def test_switches_are_on_with_their_probability_at_any_temperature():
    for temperature in (0.1, 2.0):
        made = guide(start=temperature)
        with torch.no_grad():
            share = (made.draw(100_000)["w_inclusion"].squeeze(-1) > 0).double().mean(0)
        p = torch.sigmoid(LOG_ODDS)
        assert ((share - p).abs() < 5 * (p * (1 - p) / 100_000).sqrt()).all()


def test_divergence_is_that_of_bernoulli_switches_and_normal_values():
    model, posterior = prior()
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    found = site_divergences(model.sample_slots, posterior)
    part = posterior["0.weight"]
    p = torch.sigmoid(part.inclusion.log_odds)
    switches = p * (p / 0.2).log() + (1 - p) * ((1 - p) / 0.8).log()
    divergence, is_analytic = found["0.weight_inclusion"]
    assert is_analytic
    torch.testing.assert_close(divergence, switches.sum())
    # The values, by quadrature of log q - log p.
    points, weights = torch.linspace(-12, 12, 20_001), 24 / 20_000
    z = points.reshape(-1, 1, 1)
    q = torch.distributions.Normal(part.slab.loc, part.slab.scale)
    at = part.slab.loc + part.slab.scale * z
    terms = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    terms = terms * (q.log_prob(at) - torch.distributions.Normal(0.0, 2.0).log_prob(at))
    torch.testing.assert_close(found["0.weight_slab"][0], terms.sum() * weights)


def test_relaxed_switches_have_the_divergence_of_concrete_distributions():
    """The draw's log q - log p has the expectation that quadrature of logistic densities gives."""
    q, p = guide(corners=False, start=0.7).switches(), guide(corners=False, start=0.4).switches()
    with torch.no_grad():
        values = q.sample((200_000,))
        terms = q.log_prob(values) - p.log_prob(values)
    u = torch.linspace(-60, 60, 200_001).unsqueeze(-1)

    def density(temperature):
        x = temperature * u - LOG_ODDS
        return math.log(temperature) - x - 2 * torch.nn.functional.softplus(-x)

    exact = (density(0.7).exp() * (density(0.7) - density(0.4))).sum(0) * 120 / 200_000
    error = terms.std(0) / math.sqrt(len(terms))
    assert ((terms.mean(0) - exact).abs() < 5 * error).all()
    with pytest.raises(NotImplementedError):
        kl_divergence(q, p)


@pytest.mark.parametrize("group_shape", [(1, 5), (2, 5)])
def test_moments_of_the_weights_are_those_of_draws(group_shape):
    made = guide()
    if group_shape == (2, 5):
        made.group_shape = torch.Size(group_shape)
        made.inclusion.log_odds = torch.nn.Parameter(torch.randn(10))
    with torch.no_grad():
        draws = made.draw(200_000)
    switches = (draws["w_inclusion"].squeeze(-1) > 0).reshape(-1, *group_shape)
    weights = draws["w_slab"] * switches
    mean, variance = made.weight_moments()
    assert ((weights.mean(0) - mean).abs() < 5 * (variance / 200_000).sqrt()).all()
    fourth = (weights - mean).pow(4).mean(0)
    assert ((weights.var(0) - variance).abs() < 5 * (fourth / 200_000).sqrt()).all()


def test_groups_that_are_more_probably_off_are_pruned():
    made = guide()
    pruned = made.group_scores() > made.default_threshold
    assert pruned.tolist() == [True, True, False, False, False]


def test_temperature_follows_the_training_in_a_buffer():
    made = guide(schedule="geometric", start=1.0, end=0.01)
    buffer = made.inclusion.log_temperature
    for progress, expected in ((0.0, 1.0), (0.5, 0.1), (1.0, 0.01)):
        made.advance(progress)
        assert made.inclusion.log_temperature is buffer
        assert float(made.switches().temperature[0]) == pytest.approx(expected)


def test_weights_are_exactly_zero_behind_a_switch_that_is_off():
    model, posterior = prior()
    assert torch.sigmoid(posterior["0.weight"].inclusion.log_odds).mean() == pytest.approx(
        INIT_INCLUSION
    )
    u = torch.tensor([-0.1, 0.1, 3.0], requires_grad=True)
    slot = model.prior("0.weight")
    switches = slot.switched(u)
    assert switches.tolist() == [0.0, 1.0, 1.0]
    switches.sum().backward()
    relaxed = torch.sigmoid(u.detach())
    torch.testing.assert_close(u.grad, relaxed * (1 - relaxed))


def test_loss_has_the_mean_of_the_elbo_over_all_switches():
    """Eight combinations of three switches, each weighted by its probability."""
    model, posterior = prior()
    x, y = torch.randn(9, 3), torch.arange(9) % 2
    part = posterior["0.weight"]
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for site in (part.slab, posterior["0.bias"]["0.bias"]):
            site.log_scale.fill_(-20.0)  # only the switches are random
        kl = sum(float(k) for k, _ in site_divergences(model.sample_slots, posterior).values())
        p = torch.sigmoid(part.inclusion.log_odds)
        bias = posterior.medians()["0.bias"]
        expected = kl
        for bits in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3):
            f = x @ (part.slab.loc * bits).T + bias
            log_lik = torch.log_softmax(f, -1).gather(1, y.unsqueeze(1)).sum()
            probability = torch.where(bits > 0, p, 1 - p).prod()
            expected -= float(probability * log_lik)
        objective = Objective(model, posterior)
        losses = torch.stack([objective(x, y) for _ in range(4000)])
    assert abs(float(losses.mean()) - expected) < 5 * float(losses.std()) / math.sqrt(4000)


def test_what_is_sampled_instead_is_relaxed():
    model, _ = prior()
    proper = model.proper().prior("0.weight")
    assert (proper.points, proper.inclusion, proper.scale) == ("interior", 0.2, 2.0)
    assert proper.group == "input"
    assert proper.proper() is None
