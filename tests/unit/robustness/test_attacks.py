"""Attacks against closed forms and finite differences."""

import pytest
import torch
from torch import nn

import zoo
from zoo.infer.predict.draws import draw_posterior, log_predictive_density, observation_distribution
from zoo.network.nets import Graph, mlp
from zoo.robustness.attacks import fgsm_direction, noisy_inputs, noisy_parameters, without_edges

pytestmark = pytest.mark.usefixtures("double_precision")

#: The row ``fgsm_toy`` of the table of reference values: p(y=1|x) = sigmoid(x_1 - 2 x_2).
TOY = {"clean": -0.64439666007357089, "attacked": -0.79813886938159184}


def model_of(net, likelihood="categorical", method="mean_field"):
    return zoo.create(method, net, likelihood=likelihood, num_data=50)


def log_density(model, values, x, y):
    f = torch.stack(
        [model.outputs({n: v[s] for n, v in values.items()}, x) for s in range(_draws(values))]
    )
    return log_predictive_density(observation_distribution(model, f, None).log_prob(y))


def _draws(values):
    return len(next(iter(values.values())))


def test_fgsm_on_a_logistic_regression_is_the_reference_value():
    model = model_of(nn.Linear(2, 1, bias=False), "bernoulli")
    values = {"weight": torch.tensor([[[1.0, -2.0]]])}
    x, y = torch.tensor([[0.5, 0.2]]), torch.tensor([1.0])
    attacked = x + 0.1 * fgsm_direction(model, values, x, y)
    torch.testing.assert_close(attacked, torch.tensor([[0.4, 0.3]]))
    for rows, truth in ((x, TOY["clean"]), (attacked, TOY["attacked"])):
        assert float(log_density(model, values, rows, y)) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian(noise=0.5)"])
def test_fgsm_has_the_signs_of_finite_differences_of_the_average(likelihood):
    torch.manual_seed(0)
    outputs = 3 if likelihood == "categorical" else 1
    model = model_of(mlp([4, 6, outputs], "tanh"), likelihood)
    values = draw_posterior(model, model.guide(init_scale=0.7), 5, seed=1).slots
    values.pop("noise", None)
    x = torch.randn(9, 4)
    y = torch.randint(3, (9,)) if likelihood == "categorical" else torch.randn(9)
    step = 1e-5
    slopes = torch.stack(
        [
            log_density(model, values, x + step * unit, y)
            - log_density(model, values, x - step * unit, y)
            for unit in torch.eye(4)
        ],
        dim=-1,
    ) / (2 * step)
    assert slopes.abs().min() > 1e-6  # otherwise a sign is a matter of rounding
    assert torch.equal(fgsm_direction(model, values, x, y), -slopes.sign())


def test_fgsm_attacks_the_average_and_not_one_draw():
    model = model_of(nn.Linear(1, 1, bias=False), "bernoulli")
    values = {"weight": torch.tensor([[[1.0]], [[-3.0]]])}
    x, y = torch.tensor([[0.0]]), torch.tensor([1.0])
    assert float(fgsm_direction(model, values, x, y)) == 1.0
    first = {name: value[:1] for name, value in values.items()}
    assert float(fgsm_direction(model, first, x, y)) == -1.0


def test_fgsm_does_not_vanish_where_the_network_is_sure():
    model = model_of(nn.Linear(2, 3, bias=False))
    weight = 1e4 * torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -2.0]])
    x, y = torch.tensor([[1.0, 0.5]]), torch.tensor([0])
    # The right class has probability one; the runner-up is the second class.
    expected = (weight[1] - weight[0]).sign()
    assert expected.tolist() == [-1.0, 0.0]
    direction = fgsm_direction(model, {"weight": weight[None]}, x, y)[0]
    assert float(direction[0]) == -1.0


def test_noise_on_inputs_has_the_scale_that_is_asked_for():
    x = torch.full((400, 50), 3.0)
    noise = noisy_inputs(x, 0.25, seed=4) - x
    count = noise.numel()
    assert abs(float(noise.mean())) < 5 * 0.25 / count**0.5
    assert abs(float(noise.std()) / 0.25 - 1) < 5 / (2 * count) ** 0.5
    torch.testing.assert_close(noisy_inputs(x, 0.5, seed=4) - x, 2 * noise)
    assert torch.equal(noisy_inputs(x, 0.0, seed=4), x)


def test_noise_on_parameters_gives_a_linear_model_the_variance_of_theory():
    model = model_of(nn.Linear(3, 1), "gaussian(noise=0.5)")
    draws, scale = 20_000, 0.3
    values = {
        "weight": torch.tensor([[1.0, -2.0, 0.5]]).expand(draws, 1, 3),
        "bias": torch.zeros(draws, 1),
    }
    noisy = noisy_parameters(model, values, scale, seed=2)
    x = torch.tensor([[0.5, 1.0, -1.0], [2.0, 0.0, 1.0]])
    f = torch.vmap(lambda v: model.outputs(v, x))(noisy)[..., 0]
    variance = scale**2 * (x.square().sum(1) + 1)
    mean = x @ values["weight"][0, 0]
    assert (((f.mean(0) - mean) / (variance / draws).sqrt()).abs() < 5).all()
    assert ((f.var(0) / variance - 1).abs() < 5 * (2 / draws) ** 0.5).all()
    unchanged = noisy_parameters(model, values, 0.0, seed=2)
    assert all(torch.equal(unchanged[name], values[name]) for name in values)


def test_noise_reaches_weights_that_are_points_and_leaves_normalisation_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model = model_of(net, method="stochastic_batch_norm")
    values = draw_posterior(model, model.guide(init_scale=0.1), 3, seed=0).slots
    noisy = noisy_parameters(model, values, 0.2, seed=0)
    assert set(noisy) - set(values) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert all(torch.equal(noisy[name], values[name]) for name in values)
    many = {name: value[:1].expand(2000, *value.shape[1:]) for name, value in values.items()}
    noise = noisy_parameters(model, many, 0.2, seed=0)["0.weight"]
    noise = noise - model.net.get_parameter("0.weight").detach()
    assert abs(float(noise.std()) / 0.2 - 1) < 5 / (2 * noise.numel()) ** 0.5


def test_cut_edges_carry_nothing():
    graph = Graph({(0, 1): [nn.Linear(2, 2), nn.Identity()], (0, 2): [nn.Linear(2, 2), nn.Tanh()],
                   (1, 2): [nn.Identity(), nn.Tanh()]})  # fmt: skip
    model = zoo.create("gumbel_softmax_structure", graph, likelihood="categorical", num_data=5)
    values = {"edges.0-2.structure": torch.full((3, 2), 0.5)}
    x = torch.randn(4, 2)
    whole = without_edges(model, values, 0.0, seed=0)
    assert whole.keys() == values.keys()
    cut = [set(without_edges(model, values, share, seed=0)) for share in (0.4, 0.7, 1.0)]
    assert cut[0] <= cut[1] <= cut[2]  # one order for all shares
    gone = without_edges(model, values, 1.0, seed=0)
    assert len(gone) == 3
    assert gone["edges.0-2.structure"].shape == (3, 2)
    for draw in range(3):
        f = model.outputs({name: value[draw] for name, value in gone.items()}, x)
        torch.testing.assert_close(f, torch.zeros(4, 2))
