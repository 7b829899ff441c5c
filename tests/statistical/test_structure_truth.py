"""Structure against exact answers: quadrature over the simplex, NUTS, enumeration of vertices.

Primitives that are linear in their weights make the model linear given the structure, so that the
evidence of every point of the simplex is known in closed form.
"""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

import zoo
from guides.simplex import GumbelSoftmax, log_weights
from zoo.infer.evidence import LinearModel
from zoo.infer.nuts.sampler import sample_nuts
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import elbo_draws
from zoo.network.nets import Graph
from zoo.network.nets.architectures import Powers
from zoo.network.nets.primitives import Constant
from zoo.registry import Recipe

NOISE = 0.3
SLOT = "edges.0-1.structure"


def linear_graph():
    """Return the mixture of a constant, a line without offset and a square."""
    line, square = nn.Linear(1, 1, bias=False), nn.Linear(2, 1, bias=False)
    return Graph({(0, 1): [Constant((1,)), line, nn.Sequential(Powers(2), square)]})


def features(x, weights):
    x = np.asarray(x)
    columns = [np.ones_like(x), x, x, x**2]
    return np.stack([c * w for c, w in zip(columns, np.repeat(weights, [1, 1, 2]), strict=True)], 1)


def data(kind, rows=12, seed=0):
    generator = np.random.default_rng(seed)
    x = np.linspace(-1, 1, rows)
    clean = {"constant": 0 * x + 0.8, "line": 0.9 * x, "square": 0.2 * x + 1.3 * x**2}[kind]
    return x, clean + NOISE * generator.standard_normal(rows)


def model_of(x, prior):
    return zoo.create(
        "gumbel_softmax_structure",
        linear_graph().double(),
        likelihood=f"gaussian(noise={NOISE})",
        num_data=len(x),
        priors={"*.structure": prior},
    ).double()


def tensors(x, y):
    return torch.as_tensor(x)[:, None], torch.as_tensor(y)


def evidence(x, y, weights):
    return LinearModel(features(x, weights), y, 1.0, NOISE**-2).log_evidence


def evidences(x, y, weights):
    """Return the log evidence of many structures: y is normal, its covariance known."""
    design = features(x, np.ones(3)) * np.repeat(weights, [1, 1, 2], axis=1)[:, None, :]
    covariance = design @ design.transpose(0, 2, 1) + NOISE**2 * np.eye(len(x))
    residual = np.linalg.solve(covariance, np.broadcast_to(y, (len(weights), len(y)))[..., None])
    quadratic = (y * residual[..., 0]).sum(-1)
    log_det = np.linalg.slogdet(covariance)[1]
    return -0.5 * (quadratic + log_det + len(y) * math.log(2 * math.pi))


def grid(temperature, half_width=14.0, points=113):
    """Return points of the plane of u, the area of a cell, the log prior and the weights there."""
    axis = np.linspace(-half_width, half_width, points)
    u = torch.as_tensor(np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2))
    prior = GumbelSoftmax(torch.tensor(temperature).double(), torch.zeros(3).double())
    return u, (axis[1] - axis[0]) ** 2, prior.log_prob(u).numpy(), log_weights(u).exp().numpy()


def quadrature(x, y, temperature):
    """Return log evidence and mean weights of the structure, by a sum over a grid of u."""
    _, cell, log_prior, weights = grid(temperature)
    log_joint = log_prior + evidences(x, y, weights) + math.log(cell)
    total = special.logsumexp(log_joint)
    return total, np.exp(log_joint - total) @ weights


@pytest.mark.parametrize("kind", ["constant", "line", "square"])
def test_both_ways_to_the_evidence_agree(kind):
    x, y = data(kind)
    weights = np.array([[0.2, 0.3, 0.5], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(
        evidences(x, y, weights), [evidence(x, y, w) for w in weights], rtol=1e-9
    )


def fixed_problem(temperature=0.7):
    """Return a model in which structure alone is random, and its posterior by quadrature."""
    x, y = data("square", rows=12)
    net = linear_graph().double()
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), ([0.5], [[0.8]], [[0.3, 1.0]]), strict=True):
            parameter.copy_(torch.tensor(value, dtype=torch.float64)).requires_grad_(False)
        functions = torch.cat([g(tensors(x, y)[0]) for g in net.edges["0-1"].primitives], 1)
    model = zoo.create(
        "gumbel_softmax_structure",
        net,
        likelihood=f"gaussian(noise={NOISE})",
        num_data=len(x),
        priors={"*.structure": f"GumbelSoftmaxStructure(temperature={temperature})"},
        bayesian=["*.structure"],
    ).double()
    _, cell, log_prior, weights = grid(temperature)
    residual = y - weights @ functions.numpy().T
    log_joint = log_prior + stats.norm.logpdf(residual, scale=NOISE).sum(-1) + math.log(cell)
    total = special.logsumexp(log_joint)
    return model, tensors(x, y), total, np.exp(log_joint - total), weights


@pytest.mark.slow
def test_nuts_on_unconstrained_structure_agrees_with_quadrature():
    model, rows, _, probability, weights = fixed_problem()
    draws = sample_nuts(
        model,
        rows,
        num_chains=2,
        num_warmup=300,
        num_samples=1000,
        executor="serial",
        compiled=False,
        progress_bar=False,
    )
    u = torch.as_tensor(draws.values[SLOT + "_logits"])
    sampled = log_weights(u).exp().numpy()
    for power in (1, 2):
        values = sampled**power
        means = values.reshape(2, 20, 50, 3).mean(2).reshape(40, 3)  # batches of fifty draws
        error = means.std(0, ddof=1) / math.sqrt(len(means))
        z = np.abs(values.mean((0, 1)) - probability @ weights**power) / error
        assert (z < 5).all(), (power, z)


def test_variational_structure_agrees_with_quadrature():
    """The family is not exact: the gap to the evidence is what it costs, and is printed."""
    model, rows, total, probability, weights = fixed_problem()
    guide = model.guide(init_scale=0.1)
    recipe = Recipe(num_steps=800, batch_size=12, lr=0.05, kl_warmup=0.0, schedule="linear")
    SVI(model, guide, *rows, recipe=recipe, seed=0).run(progress_bar=False)
    bounds = elbo_draws(model, guide, *rows, num_draws=400)
    error = float(bounds.std()) / math.sqrt(len(bounds))
    gap = total - float(bounds.mean())
    assert -5 * error < gap < 0.5, f"the bound is {gap:.3f} nats below the evidence"
    torch.manual_seed(0)
    u = guide[SLOT].draw(4000)[SLOT + "_logits"]
    means = log_weights(u).exp().mean(0).detach().numpy()
    # By Pinsker's inequality means in [0, 1] differ by at most sqrt(KL / 2), and KL is the gap.
    assert np.abs(means - probability @ weights).max() < math.sqrt((gap + 5 * error) / 2)


@pytest.mark.slow
def test_variational_structure_and_weights_are_a_bound_with_the_mode_of_quadrature():
    x, y = data("square", rows=30)
    total, expected = quadrature(x, y, 0.7)
    model = model_of(x, "GumbelSoftmaxStructure(temperature=0.7)")
    guide = model.guide(init_scale=0.1)
    recipe = Recipe(num_steps=1500, batch_size=30, lr=0.03, kl_warmup=0.1, schedule="linear")
    SVI(model, guide, *tensors(x, y), recipe=recipe, seed=0).run(progress_bar=False)
    bounds = elbo_draws(model, guide, *tensors(x, y), num_draws=500)
    error = float(bounds.std()) / math.sqrt(len(bounds))
    assert float(bounds.mean()) < total + 5 * error
    assert total - float(bounds.mean()) < 3  # nats: what independence of w and structure costs
    torch.manual_seed(0)
    u = guide[SLOT].draw(4000)[SLOT + "_logits"]
    weights = log_weights(u).exp().mean(0).detach().numpy()
    assert weights.argmax() == expected.argmax()


@pytest.mark.parametrize("kind", ["constant", "line", "square"])
def test_vertices_have_the_mode_of_exhaustive_enumeration(kind):
    """P(k | y) is proportional to s_k times the exact evidence of primitive k."""
    x, y = data(kind, rows=30)
    exact = special.softmax([evidence(x, y, corner) for corner in np.eye(3)])
    model = model_of(x, "GumbelSoftmaxStructure(points=vertices)")
    guide = model.guide(init_scale=0.1)
    recipe = Recipe(num_steps=600, batch_size=30, lr=0.05, kl_warmup=0.1, schedule="linear")
    SVI(model, guide, *tensors(x, y), recipe=recipe, seed=0).run(progress_bar=False)
    found = guide[SLOT].probabilities().numpy()
    assert found.argmax() == exact.argmax() == ["constant", "line", "square"].index(kind)
    assert exact.max() > 0.5
    assert found.max() > 0.5
