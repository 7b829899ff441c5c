"""Priors of structure (`zoo.models.gumbel_softmax_structure`): text, models, guides, schedules."""

import pyro.poutine as poutine
import pytest
import torch
from torch import nn

import zoo
from guides.gumbel_softmax_structure import GumbelSoftmaxStructureGuide, temperature_at
from zoo.errors import PriorError
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective, site_divergences
from zoo.network.nets import Graph, build_net
from zoo.priors import Prior
from zoo.registry import Recipe

SLOT = "1.edges.0-1.structure"


def toy(prior=None, **options):
    return zoo.create(
        "gumbel_softmax_structure",
        build_net("toy", 1, 1).double(),
        likelihood="gaussian(noise=0.5)",
        num_data=10,
        priors={"*.structure": prior} if prior else None,
        **options,
    ).double()


PRIORS = [
    "GumbelSoftmaxStructure()",
    "GumbelSoftmaxStructure(temperature=0.2, s=[1, 2, 3], penalty=0.1)",
    "GumbelSoftmaxStructure(space=cube)",
    "GumbelSoftmaxStructure(points=vertices)",
    "GumbelSoftmaxStructure(points=vertices, space=cube)",
    "DirichletStructure(0.5)",
    "DirichletStructure(space=cube)",
]
VARIANTS = [
    *((prior, {}) for prior in PRIORS),
    ("GumbelSoftmaxStructure(points=vertices)", {"schedule": "geometric"}),
    ("DirichletStructure()", {"posterior": "gumbel_softmax"}),
]


@pytest.mark.parametrize(("text", "options"), VARIANTS)
def test_every_variant_has_a_model_a_guide_and_gradients(text, options, module_local_params):
    assert Prior.parse(str(Prior.parse(text))) == Prior.parse(text)
    assert Prior.parse(Prior.parse(text).to_dict()) == Prior.parse(text)
    model = toy(text, options=options)
    guide = model.guide(init_scale=0.1)
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
    loss = Objective(model, guide)(x, x[:, 0].tanh())
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in guide.parameters())
    drawn = poutine.trace(model.sample_slots).get_trace().nodes[SLOT]["value"]
    assert drawn.shape == (3,)
    assert (drawn >= 0).all()
    if "cube" not in text:
        assert float(drawn.sum()) == pytest.approx(1)
    if "vertices" in text:
        assert set(drawn.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("text", "options", "analytic"),
    [
        ("GumbelSoftmaxStructure()", {}, False),
        ("GumbelSoftmaxStructure(points=vertices)", {}, True),
        ("GumbelSoftmaxStructure(points=vertices, space=cube)", {}, True),
        ("DirichletStructure()", {}, True),
        ("DirichletStructure(space=cube)", {}, True),
        ("DirichletStructure()", {"posterior": "gumbel_softmax"}, False),
    ],
)
def test_closed_form_is_taken_where_there_is_one(text, options, analytic, module_local_params):
    model = toy(text, options=options)
    found = site_divergences(model.sample_slots, model.guide(init_scale=0.1))
    assert found[SLOT + "_logits"][1] is analytic
    assert all(known for name, (_, known) in found.items() if "structure" not in name)


def test_penalty_multiplies_the_favour_of_large_primitives():
    model = toy("GumbelSoftmaxStructure(penalty=0.1, s=[1, 2, 4])")
    expected = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).log() - 0.1 * torch.tensor(
        [1.0, 2.0, 11.0], dtype=torch.float64
    )
    torch.testing.assert_close(model.prior(SLOT).logits, expected)


def test_divergence_of_vertices_with_a_penalty_is_the_expected_size(module_local_params):
    """KL(q, p) = -H(q) + λ E n + log Z: what architecture search adds to the likelihood."""
    model = toy("GumbelSoftmaxStructure(points=vertices, penalty=0.1)")
    guide = model.guide(init_scale=0.1)
    (kl, _) = site_divergences(model.sample_slots, guide)[SLOT + "_logits"]
    sizes = torch.tensor([1.0, 2.0, 11.0], dtype=torch.float64)
    log_z = torch.logsumexp(-0.1 * sizes, 0)
    expected = -torch.log(torch.tensor(3.0)) + 0.1 * sizes.mean() + log_z
    assert float(kl.detach()) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GumbelSoftmaxStructure(temperature=0)", "temperature"),
        ("GumbelSoftmaxStructure(temperature=-1)", "temperature"),
        ("GumbelSoftmaxStructure(s=[1, 0, 2])", "positive numbers"),
        ("GumbelSoftmaxStructure(space=ball)", "one of simplex, cube"),
        ("GumbelSoftmaxStructure(points=edges)", "one of interior, vertices"),
        ("GumbelSoftmaxStructure(penalty=-1)", "penalty"),
        ("GumbelSoftmaxStructure(s=[1, 2])", "mixes 3 primitives"),
        ("DirichletStructure(s=[-1, 1, 1])", "positive numbers"),
        ("Normal(0, 1)", "is the structure of a network"),
    ],
)
def test_bad_prior_says_what_is_wrong(text, words):
    with pytest.raises(PriorError, match=words):
        toy(text)


def test_vertices_are_sampled_as_their_interior():
    model = toy("GumbelSoftmaxStructure(temperature=0.3, points=vertices, s=[1, 2, 3])")
    proper = model.proper()
    assert str(proper.priors[SLOT]).startswith(
        "GumbelSoftmaxStructure(temperature=0.3, s=[1, 2, 3]"
    )
    assert proper.prior(SLOT).points == "interior"
    assert toy("GumbelSoftmaxStructure()").proper().priors == toy("GumbelSoftmaxStructure()").priors


def test_gradient_of_vertices_passes_straight_through():
    prior = toy("GumbelSoftmaxStructure(points=vertices)").prior(SLOT)
    u = torch.tensor([0.4, -0.2], dtype=torch.float64, requires_grad=True)
    weights = prior.weights(u, rounded=True)
    assert weights.tolist() == [1.0, 0.0, 0.0]
    relaxed = torch.softmax(torch.cat([u, u.new_zeros(1)]), 0)
    (straight,) = torch.autograd.grad(weights[0], u)
    (expected,) = torch.autograd.grad(relaxed[0], u)
    torch.testing.assert_close(straight, expected)


@pytest.mark.parametrize(
    ("schedule", "half"),
    [("trained", 1.0), ("constant", 1.0), ("linear", 0.55), ("geometric", 0.1**0.5)],
)
def test_temperature_is_a_function_of_the_progress(schedule, half):
    assert temperature_at(schedule, 1.0, 0.1, 0.0) == pytest.approx(1.0)
    assert temperature_at(schedule, 1.0, 0.1, 0.5) == pytest.approx(half)


@pytest.mark.parametrize("schedule", ["trained", "linear"])
def test_training_lets_the_temperature_follow(schedule):
    model = toy(options={"schedule": schedule, "start": 1, "end": 0.1})
    guide = model.guide(init_scale=0.1)
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
    recipe = Recipe(num_steps=10, batch_size=10, lr=0.01)
    SVI(model, guide, x, x[:, 0], recipe=recipe, seed=0).run(progress_bar=False)
    assert isinstance(guide[SLOT], GumbelSoftmaxStructureGuide)
    value = float(guide[SLOT].logits.log_temperature.detach().exp())
    if schedule == "linear":
        assert value == pytest.approx(1 - 0.9 * 0.9)  # nine of ten steps are done at the last one
    else:
        assert value != 1
        assert value == pytest.approx(1, abs=0.2)


def test_structure_alone_can_be_random():
    model = toy(bayesian=["*.structure"])
    assert list(model.slots) == [SLOT]


def test_guide_finds_the_primitive_that_the_data_come_from(module_local_params):
    """Of sine, identity and absolute value without parameters, only one can have made y."""

    class Function(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function(x)

    net = Graph({(0, 1): [Function(torch.sin), nn.Identity(), Function(torch.abs)]})
    model = zoo.create(
        "gumbel_softmax_structure", net, likelihood="gaussian(noise=0.1)", num_data=30
    ).double()
    guide = model.guide(init_scale=0.1)
    x = torch.linspace(-3, 3, 30, dtype=torch.float64)[:, None]
    recipe = Recipe(num_steps=500, batch_size=30, lr=0.05, kl_warmup=0.0)
    SVI(model, guide, x, x[:, 0].abs(), recipe=recipe, seed=0).run(progress_bar=False)
    probabilities = guide["edges.0-1.structure"].probabilities()
    assert float(probabilities[2]) > 0.99
