r"""A primitive with n parameters is :math:`e^{-\lambda n}` times as probable, under every prior.

Asked of the model alone: the density of its site at fixed coordinates, and the draws it makes.
"""

import math

import pyro
import pyro.poutine as poutine
import pytest
import torch

import zoo
from zoo.network.nets import build_net

#: Parameters of the three primitives of the toy network.
SIZES = torch.tensor([1.0, 2.0, 11.0], dtype=torch.float64)
S = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
PENALTY = 0.1
SLOT = "1.edges.0-1.structure"
COORDINATES = torch.tensor([0.7, -0.4], dtype=torch.float64)
SCORES = torch.tensor([0.7, -0.4, 0.2], dtype=torch.float64)


def toy(prior, method="gumbel_softmax_structure"):
    return zoo.create(
        method,
        build_net("toy", 1, 1).double(),
        likelihood="gaussian(noise=0.5)",
        num_data=4,
        priors={"*.structure": prior},
    ).double()


def traced(model, data=None):
    x = torch.linspace(-1, 1, 4, dtype=torch.float64)[:, None]
    trace = poutine.trace(poutine.condition(model, data=data or {})).get_trace(x, x[:, 0])
    trace.compute_log_prob()
    return trace


def site_of(trace):
    (name,) = [name for name in trace.nodes if name.endswith("structure_logits")]
    return name


def log_density(prior, value, method="gumbel_softmax_structure"):
    model = toy(prior, method)
    site = site_of(traced(model))
    return float(traced(model, {site: value}).nodes[site]["log_prob"].detach())


def favours(penalty):
    """The numbers s with the penalty, from its definition."""
    return S * torch.exp(-penalty * SIZES)


def gumbel_softmax(favours, temperature):
    """The density of the coordinates log(γ_k / γ_K), from that of γ in Maddison et al. (2017)."""
    gamma = torch.softmax(torch.cat([COORDINATES, torch.zeros(1, dtype=torch.float64)]), 0)
    top = (favours * gamma.pow(-temperature - 1)).prod()
    density = math.factorial(2) * temperature**2 * top
    density = density / (favours * gamma.pow(-temperature)).sum() ** 3
    return float((density * gamma.prod()).log())


def dirichlet(favours, temperature):
    gamma = torch.softmax(torch.cat([COORDINATES, torch.zeros(1, dtype=torch.float64)]), 0)
    prior = torch.distributions.Dirichlet(temperature * favours)
    return float(prior.log_prob(gamma) + gamma.log().sum())


@pytest.mark.parametrize("penalty", [0.0, PENALTY])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize(
    ("name", "oracle"),
    [("GumbelSoftmaxStructure", gumbel_softmax), ("DirichletStructure", dirichlet)],
)
def test_density_is_that_of_the_penalised_favours(name, oracle, temperature, penalty):
    text = f"{name}(temperature={temperature}, s=[1, 2, 4], penalty={penalty})"
    found = log_density(text, COORDINATES)
    assert found == pytest.approx(oracle(favours(penalty), temperature), rel=1e-9)


def test_scores_are_centred_at_minus_the_penalty_times_the_size():
    tau = 0.8
    shifts = [
        log_density(f"Darts({tau}, penalty={penalty})", SCORES, "darts")
        for penalty in (0.0, PENALTY)
    ]
    squares = [((SCORES + penalty * SIZES) ** 2).sum() for penalty in (0.0, PENALTY)]
    expected = float(squares[0] - squares[1]) / (2 * tau**2)
    assert shifts[1] - shifts[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("points", ["interior", "vertices"])
def test_larger_primitives_win_less_often(points):
    """The largest weight is that of primitive k with probability proportional to its favour."""
    model = toy(f"GumbelSoftmaxStructure(penalty={PENALTY}, s=[1, 2, 4], points={points})")
    pyro.set_rng_seed(0)
    number = 500
    with torch.no_grad():
        winners = torch.stack(
            [
                poutine.trace(model.sample_slots).get_trace().nodes[SLOT]["value"].argmax()
                for _ in range(number)
            ]
        )
    shares = torch.bincount(winners, minlength=3) / number
    expected = favours(PENALTY) / favours(PENALTY).sum()
    errors = (expected * (1 - expected) / number).sqrt()
    assert ((shares - expected).abs() < 5 * errors).all(), shares
