import math

import pytest
import torch
from torch import nn

import zoo
from zoo.infer.pruning.moments import slot_moments
from zoo.network.nets import mlp


def create(**options):
    return zoo.create(
        "group_horseshoe", mlp([3, 4, 1]), likelihood="gaussian", num_data=10, **options
    )


@torch.no_grad()
def test_moments_in_closed_form_agree_with_draws():
    model = create(priors={"noise": "HalfNormal(1)"})
    guide = model.guide(init_scale=0.2)
    found = slot_moments(model, guide, seed=0)
    assert set(found.means) == set(found.variances) == set(model.slots)
    draws = zoo.infer.predict.draws.draw_posterior(model, guide, 20_000, seed=1).slots
    for name, mean in found.means.items():
        assert mean.dtype == torch.float64
        drawn, variance = draws[name].double(), found.variances[name]
        error = (variance / len(drawn)).sqrt()
        assert ((drawn.mean(0) - mean).abs() <= 5 * error).all(), name
        # The variance of a sample variance, from the fourth moment of the draws.
        fourth = (drawn - drawn.mean(0)).pow(4).mean(0)
        error = ((fourth - variance.square()).clamp(min=0) / len(drawn)).sqrt()
        assert ((drawn.var(0) - variance).abs() <= 5 * error).all(), name


def test_posterior_without_formula_is_drawn():
    model = create()
    guide = model.full_rank_guide(init_scale=0.05)
    found = slot_moments(model, guide, seed=0)
    again = slot_moments(model, guide, seed=0)
    assert torch.equal(found.means["0.weight"], again.means["0.weight"])
    wanted = model.net[0].bias
    # Biases start at the network's, with a standard deviation of 0.05 and 1000 draws.
    assert (found.means["0.bias"] - wanted).abs().max() <= 5 * 0.05 / math.sqrt(1000)


def test_weights_with_a_codebook_become_code_words(monkeypatch):
    model = zoo.create("mean_field", mlp([3, 2]), likelihood="categorical", num_data=10)
    guide = model.guide(init_scale=0.01)
    words = torch.tensor([-0.2, 0.0, 0.2])

    def quantized(self, part):
        loc = part[part.names[0]].loc
        return words[(loc.unsqueeze(-1) - words).abs().argmin(-1)]

    prior = model.prior("0.weight")
    monkeypatch.setattr(type(prior), "quantized", quantized, raising=False)
    monkeypatch.setattr(type(prior), "code_words", lambda self: words, raising=False)
    found = slot_moments(model, guide, seed=0)
    assert set(found.means["0.weight"].flatten().tolist()) <= set(words.double().tolist())
    assert "0.weight" not in found.variances


def test_slots_of_normalisation_and_points_have_no_moments():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = zoo.create("mean_field", net, likelihood="gaussian", num_data=10)
    found = slot_moments(model, model.guide(init_scale=0.01), seed=0)
    assert set(found.means) == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("scale", [0.01, 0.3])
def test_positive_slots_have_the_moments_of_a_log_normal(scale):
    model = create(priors={"noise": "HalfNormal(1)"})
    guide = model.guide(init_scale=scale)
    found = slot_moments(model, guide, seed=0)
    loc = float(guide["noise"]["noise"].loc.detach())
    assert float(found.means["noise"]) == pytest.approx(math.exp(loc + scale**2 / 2), rel=1e-6)
