"""Two levels of inference: hyper-gradients, and the limits that the theory promises."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from benchmarks.two_levels import Bilevel, Metaparameters, hypergradient, optimise
from zoo.errors import ConfigError
from zoo.infer.evidence import LinearModel
from zoo.network.nets import build_net

F64 = torch.float64
NOISE = 0.5
ROWS, WEIGHTS = 24, 3


def scalar(value):
    return torch.tensor(value, dtype=F64)


# ------------------------------------------------------------------ hyper-gradients


def toy_lower(theta, h):
    return -((theta["t"] - h["h"]) ** 2)  # a = 2


def toy_upper(theta, h):
    return -0.5 * (theta["t"] - 1) ** 2 - 0.25 * h["h"] ** 2  # c = 1/2


@pytest.mark.parametrize(("num_steps", "expected"), [(0, 0.1), (1, 0.26)])
def test_hypergradients_have_the_reference_values(num_steps, expected):
    _, gradient = hypergradient(
        toy_lower,
        toy_upper,
        {"t": scalar(0.3)},
        {"h": scalar(-0.2)},
        num_steps=num_steps,
        lr=0.1,
    )
    assert float(gradient["h"]) == pytest.approx(expected, rel=1e-9)


def test_many_steps_lead_to_the_implicit_gradient():
    """At the solution of the lower level, θ* = h, the gradient is (1 - h) - c h = 1.3."""
    _, gradient = hypergradient(
        toy_lower, toy_upper, {"t": scalar(-0.2)}, {"h": scalar(-0.2)}, num_steps=100, lr=0.1
    )
    assert float(gradient["h"]) == pytest.approx(1.3, rel=1e-6)


def seeded(level):
    def evaluate(theta, h):
        torch.manual_seed(0)
        return level(theta, h)

    return evaluate


@pytest.mark.parametrize(
    ("num_steps", "prior"),
    [
        (0, "GumbelSoftmaxStructure(0.7)"),
        (1, "GumbelSoftmaxStructure(0.7)"),
        (3, "GumbelSoftmaxStructure(0.7)"),
        (0, "GumbelSoftmaxStructure(points=vertices)"),
    ],
)
def test_hypergradients_of_a_network_agree_with_finite_differences(
    num_steps, prior, module_local_params
):
    """Vertices are not followed through a step: gradients that pass straight through are biased."""
    model = zoo.create(
        "gumbel_softmax_structure",
        build_net("toy", 1, 1).double(),
        likelihood=f"gaussian(noise={NOISE})",
        num_data=10,
        priors={"*.structure": prior},
    ).double()
    x = torch.linspace(-1, 1, 10, dtype=F64)[:, None]
    meta = Metaparameters(0.7, 1.3, 0.9, {0: -0.5, 2: 0.3})
    problem = Bilevel(model, model.guide(init_scale=0.3), x, x[:, 0], metaparameters=meta)
    lower, upper = seeded(problem.lower), seeded(problem.upper)
    lr = 1e-3

    def value(h):
        theta = {name: v.detach().requires_grad_() for name, v in problem.theta.items()}
        for _ in range(num_steps):
            slopes = torch.autograd.grad(lower(theta, h), list(theta.values()), allow_unused=True)
            theta = {
                name: (v if s is None else v + lr * s).detach().requires_grad_()
                for (name, v), s in zip(theta.items(), slopes, strict=True)
            }
        return float(upper(theta, h).detach())

    _, gradients = hypergradient(lower, upper, problem.theta, problem.h, num_steps=num_steps, lr=lr)
    for name, gradient in gradients.items():
        direction = torch.linspace(0.5, 1.5, gradient.numel(), dtype=F64).reshape(gradient.shape)
        ends = []
        for sign in (1, -1):
            h = dict(problem.h)
            h[name] = h[name] + sign * 1e-5 * direction
            ends.append(value(h))
        slope = (ends[0] - ends[1]) / 2e-5
        expected = float((gradient * direction).sum())
        assert expected == pytest.approx(slope, rel=1e-5, abs=1e-6), name


# ------------------------------------------------------------------ a problem in closed form


@pytest.fixture
def regression():
    """Orthogonal features, so that the best factorised posterior is the exact one."""
    generator = np.random.default_rng(0)
    design = np.linalg.qr(generator.standard_normal((ROWS, WEIGHTS)))[0] * math.sqrt(ROWS)
    y = design @ np.array([1.0, 0.4, 0.2]) + NOISE * generator.standard_normal(ROWS)
    return design, y


def closed_levels(design, y, meta):
    """Return both levels without any draw, and the divergence."""
    features, target = torch.as_tensor(design), torch.as_tensor(y)

    def likelihood(theta):
        residual = target - features @ theta["mean"]
        spread = (2 * theta["log_sd"]).exp().sum() * ROWS
        constant = ROWS * math.log(2 * math.pi * NOISE**2)
        return -0.5 * ((residual.square().sum() + spread) / NOISE**2 + constant)

    def divergence(theta, h):
        ratio = (2 * (theta["log_sd"] - h["log_scale"])).exp()
        square = theta["mean"].square() * (-2 * h["log_scale"]).exp()
        return 0.5 * (ratio + square - ratio.log() - 1).sum()

    def lower(theta, h):
        return likelihood(theta) - meta.lam_l_prior * divergence(theta, h)

    def upper(theta, h):
        return meta.lam_q_lik * likelihood(theta) - meta.lam_q_prior * divergence(theta, h)

    return lower, upper, divergence


def solve(regression, meta, *, with_h=True, **options):
    lower, upper, divergence = closed_levels(*regression, meta)
    start = {
        "mean": torch.zeros(WEIGHTS, dtype=F64),
        "log_sd": torch.full((WEIGHTS,), -1.0, dtype=F64),
    }
    h = {"log_scale": torch.zeros(WEIGHTS, dtype=F64)}
    if not with_h:
        fixed = h
        solution = optimise(
            lambda theta, _: lower(theta, fixed),
            lambda theta, _: upper(theta, fixed),
            start,
            {},
            num_steps=300,
            lr=0.1,
            hyper_lr=0.0,
        )
        return solution, float(divergence(solution.theta, fixed))
    settings = {"num_steps": 300, "lr": 0.1, "hyper_lr": 0.1, "unroll": 0} | options
    solution = optimise(lower, upper, start, h, **settings)
    return solution, float(divergence(solution.theta, solution.h))


def test_limit_of_maximum_likelihood(regression):
    solution, _ = solve(regression, Metaparameters(lam_l_prior=1e-9), with_h=False)
    best = np.linalg.lstsq(*regression, rcond=None)[0]
    np.testing.assert_allclose(solution.theta["mean"], best, rtol=1e-5)


def test_limit_of_the_evidence(regression):
    """Q is the evidence, and variances are those that maximise it: ŵ² - σ² / N where positive."""
    design, y = regression
    solution, _ = solve(regression, Metaparameters(), num_steps=600)
    variance = (2 * solution.h["log_scale"]).exp().numpy()
    best = np.linalg.lstsq(design, y, rcond=None)[0]
    expected = best**2 - NOISE**2 / ROWS
    assert (expected > 0).all()
    np.testing.assert_allclose(variance, expected, rtol=2e-3)
    exact = LinearModel(design, y, 1 / variance, NOISE**-2).log_evidence
    assert float(solution.upper[-1]) == pytest.approx(exact, rel=1e-6)
    others = [
        LinearModel(design, y, 1 / (variance * f), NOISE**-2).log_evidence for f in (0.8, 1.25)
    ]
    assert exact > max(others)


@pytest.mark.parametrize("c", [0.5, 2.0, 10.0])
def test_weight_of_the_prior_is_an_effective_number_of_rows(regression, c):
    """λ_L = c is the posterior of N / c rows: precision 1 + N / (c σ²)."""
    design, y = regression
    solution, _ = solve(regression, Metaparameters(lam_l_prior=c), with_h=False)
    precision = 1 + ROWS / (c * NOISE**2)
    np.testing.assert_allclose((-2 * solution.theta["log_sd"]).exp(), precision, rtol=1e-5)
    mean = design.T @ y / (c * NOISE**2) / precision
    np.testing.assert_allclose(solution.theta["mean"], mean, rtol=1e-5)


def test_complexity_shrinks_with_the_weight_of_the_prior_below(regression):
    found = [
        solve(regression, Metaparameters(lam_l_prior=c), with_h=False)[1] for c in (0.1, 1, 10, 100)
    ]
    assert (np.diff(found) < 0).all(), found


def test_complexity_shrinks_with_the_weight_of_the_prior_above(regression):
    """Hyper-gradients have to look ahead for this: how θ follows h is what the weight acts on."""
    found = [
        solve(
            regression,
            Metaparameters(lam_q_prior=c),
            num_steps=120,
            unroll=5,
            unroll_lr=2e-3,
        )[1]
        for c in (0.3, 1.0, 3.0)
    ]
    assert (np.diff(found) < -1e-3).all(), found


def test_shared_objective_needs_no_look_ahead(regression):
    """With λ_Q^prior / λ_Q^lik = λ_L^prior both gradients lead to the same solution."""
    meta = Metaparameters(lam_l_prior=2.0, lam_q_lik=0.5, lam_q_prior=1.0)
    first, _ = solve(regression, meta, num_steps=500)
    greedy, _ = solve(regression, meta, num_steps=500, unroll=1, unroll_lr=1e-3)
    torch.testing.assert_close(first.h["log_scale"], greedy.h["log_scale"], rtol=0, atol=5e-3)


# ------------------------------------------------------------------ networks


def test_levels_of_a_network_are_those_in_closed_form(regression, module_local_params):
    design, y = regression
    net = nn.Linear(WEIGHTS, 1, bias=False).double()
    model = zoo.create(
        "mean_field", net, likelihood=f"gaussian(noise={NOISE})", num_data=ROWS
    ).double()
    meta = Metaparameters(0.7, 1.3, 0.9)
    problem = Bilevel(
        model,
        model.guide(init_scale=0.3),
        torch.as_tensor(design),
        torch.as_tensor(y),
        metaparameters=meta,
    )
    (mean,) = (v for k, v in problem.theta.items() if k.endswith("loc"))
    (log_sd,) = (v for k, v in problem.theta.items() if k.endswith("log_scale"))
    lower, upper, _ = closed_levels(design, y, meta)
    theta = {"mean": mean.flatten(), "log_sd": log_sd.flatten()}
    h = {"log_scale": torch.tensor([0.1, -0.3, 0.2], dtype=F64)}
    ours = {"weight.prior_scale": h["log_scale"].reshape(1, WEIGHTS)}
    torch.manual_seed(0)
    draws = torch.stack([problem.lower(problem.theta, ours) for _ in range(200)])
    error = float(draws.std()) / math.sqrt(len(draws))
    assert abs(float(draws.mean() - lower(theta, h))) < 5 * error
    draws = torch.stack([problem.upper(problem.theta, ours) for _ in range(200)])
    error = float(draws.std()) / math.sqrt(len(draws))
    assert abs(float(draws.mean() - upper(theta, h))) < 5 * error


def structure_problem(lam_struct, prior="GumbelSoftmaxStructure(temperature=0.3)"):
    model = zoo.create(
        "gumbel_softmax_structure",
        build_net("toy", 1, 1).double(),
        likelihood=f"gaussian(noise={NOISE})",
        num_data=10,
        priors={"*.structure": prior},
    ).double()
    x = torch.linspace(-1, 1, 10, dtype=F64)[:, None]
    # Only the term of the structure acts: neither data nor posterior.
    meta = Metaparameters(lam_q_lik=0.0, lam_q_prior=0.0, lam_struct=lam_struct)
    return model, Bilevel(
        model,
        model.guide(init_scale=0.1),
        x,
        x[:, 0],
        metaparameters=meta,
        variances=False,
    )


@pytest.mark.parametrize(
    "prior", ["GumbelSoftmaxStructure(0.3)", "GumbelSoftmaxStructure(0.3, points=vertices)"]
)
def test_walk_over_signs_visits_every_structure(prior):
    """Repelled from two vertices, or attracted to one, the prior goes to the third, or there."""
    visited, attracted = [], []
    for target in range(3):
        repelled = {k: -1.0 for k in range(3) if k != target}
        for weights, found in ((repelled, visited), ({target: 1.0}, attracted)):
            _, problem = structure_problem(weights, prior)
            levels = (lambda theta, h: theta["none"].sum()), problem.upper
            theta = {"none": torch.zeros(1, dtype=F64)}
            solution = optimise(
                *levels,
                theta,
                problem.h,
                num_steps=30,
                lr=0.0,
                hyper_lr=0.2,
                unroll=0,
            )
            (logits,) = solution.h.values()
            found.append(int(logits.argmax()))
            assert float(torch.softmax(logits, 0)[target]) > 0.6
    assert visited == attracted == [0, 1, 2]


def test_solution_is_written_into_model_and_guide():
    model, problem = structure_problem({2: 1.0})
    solution = problem.run(num_steps=3, lr=0.01, hyper_lr=0.1)
    slot = "1.edges.0-1.structure"
    assert torch.equal(model.prior(slot).logits, solution.h[f"{slot}.logits"])
    moved = dict(problem.terms.named_parameters())
    assert all(torch.equal(moved[name], value) for name, value in solution.theta.items())
    assert solution.lower.shape == solution.upper.shape == (3,)


def test_variances_are_for_elements_or_slots():
    net = nn.Linear(3, 2).double()
    model = zoo.create("mean_field", net, likelihood="gaussian(noise=1)", num_data=4).double()
    guide, x = model.guide(init_scale=0.1), torch.zeros(4, 3, dtype=F64)
    element = Bilevel(model, guide, x, x[:, 0])
    assert {k: tuple(v.shape) for k, v in element.h.items()} == {
        "weight.prior_scale": (2, 3),
        "bias.prior_scale": (2,),
    }
    slot = Bilevel(model, guide, x, x[:, 0], per="slot")
    assert {tuple(v.shape) for v in slot.h.values()} == {()}


@pytest.mark.parametrize(
    "options", [{"lam_q_lik": -1.0}, {"lam_l_prior": float("nan")}, {"vertex_odds": 1.0}]
)
def test_bad_weights_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Metaparameters(**options)


def test_unknown_vertices_and_units_are_refused():
    _, problem = structure_problem({5: 1.0})
    with pytest.raises(ConfigError, match="names vertex 5"):
        problem.distance_to_vertex(problem.h, 5)
    with pytest.raises(ConfigError, match="element or slot"):
        Bilevel(problem.terms.model, problem.terms.guide, *problem.rows, per="layer")
