"""DARTS: structure and weights are points that see different rows."""

import pytest
import torch
from pyro.distributions import Delta
from torch import nn

import zoo
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective
from zoo.registry import Recipe

SLOT = "1.structure"


def problem(rows=20):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    model = zoo.create("darts", net, likelihood="gaussian(noise=0.5)", num_data=rows).double()
    x = torch.randn(rows, 2, dtype=torch.float64)
    return model, model.guide(init_scale=0.1), x, x[:, 0].relu()


def svi_of(model, guide, x, y, **options):
    recipe = Recipe(batch_size=len(x), kl_warmup=0.0, **({"num_steps": 1, "lr": 0.01} | options))
    return SVI(model, guide, x, y, recipe=recipe, seed=0)


def test_levels_share_no_row_and_leave_none_out():
    model, guide, x, y = problem()
    svi = svi_of(model, guide, x, y)
    seen = torch.cat([svi.batches.x, svi.upper_batches.x])
    assert len(svi.batches.x) == len(svi.upper_batches.x) == 10
    assert torch.equal(seen[:, 0].sort().values, x[:, 0].sort().values)


def test_other_methods_use_all_rows():
    model, _, x, y = problem()
    other = zoo.create("mean_field", model.net, likelihood="gaussian(noise=0.5)", num_data=20)
    svi = svi_of(other.double(), other.guide(init_scale=0.1).double(), x, y)
    assert svi.upper_batches is None
    assert torch.equal(svi.batches.x, x)


def test_gradients_of_a_step_are_those_of_the_rows_of_each_level(module_local_params):
    model, guide, x, y = problem()
    svi = svi_of(model, guide, x, y)
    expected = {}
    for level, batches in (("weights", svi.batches), ("structure", svi.upper_batches)):
        torch.manual_seed(0)
        objective = Objective(model, guide)
        objective.zero_grad()
        objective(*batches[0]).backward()
        expected[level] = {
            n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None
        }
    svi.run(progress_bar=False)
    found = {n: p.grad for n, p in svi.objective.named_parameters() if p.grad is not None}
    assert any("structure" in name for name in found)
    assert any("net" in name for name in found)
    for name, gradient in found.items():
        level = "structure" if "structure" in name else "weights"
        torch.testing.assert_close(gradient, expected[level][name])
        other = expected["weights" if level == "structure" else "structure"][name]
        assert not torch.allclose(gradient, other, rtol=1e-2, atol=1e-2)


def test_draws_are_one_point_on_the_simplex():
    _, guide, *_ = problem()
    assert isinstance(guide[SLOT].distributions()[SLOT + "_logits"], Delta)
    drawn = torch.softmax(guide[SLOT].draw(50)[SLOT + "_logits"], -1)
    assert torch.equal(drawn, drawn[:1].expand(50, -1))
    torch.testing.assert_close(drawn[0], guide[SLOT].probabilities())


def test_it_finds_the_function_that_made_the_data():
    """Weights that may only scale and shift: y is a hyperbolic tangent and no other primitive."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)).double()
    x = torch.linspace(-4, 4, 60, dtype=torch.float64)[:, None]
    model = zoo.create("darts", net, likelihood="gaussian(noise=0.1)", num_data=60).double()
    guide = model.guide(init_scale=0.1)
    recipe = Recipe(num_steps=500, batch_size=30, lr=0.05, kl_warmup=0.0)
    SVI(model, guide, x, torch.tanh(x[:, 0]), recipe=recipe, seed=0).run(progress_bar=False)
    probabilities = guide[SLOT].probabilities()
    assert int(probabilities.argmax()) == 0  # tanh, identity, relu
    assert float(probabilities[0]) > 0.6


def test_there_is_no_posterior_to_be_sampled_or_correlated():
    model, *_ = problem()
    assert not model.method.has_posterior
    with pytest.raises(
        zoo.errors.ConfigError, match="the guide 'full_rank' cannot be used: darts fits points"
    ):
        model.method.full_rank_guide(model, 0.1)


def test_one_row_cannot_be_split():
    model, guide, x, y = problem(rows=1)
    with pytest.raises(zoo.errors.ZooError, match="only one row"):
        svi_of(model, guide, x, y)


@pytest.mark.parametrize("text", ["Darts(scale=0)", "Darts(s=[1, 2])"])
def test_bad_prior_is_refused(text):
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(zoo.errors.PriorError):
        zoo.create(
            "darts",
            net,
            likelihood="gaussian(noise=0.5)",
            num_data=5,
            priors={"*.structure": text},
        )
