"""The curvature of a Laplace approximation, against brute force, formulas and laplace-torch."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import integrate, stats
from torch import nn

import zoo
from zoo.errors import ConfigError
from zoo.infer import curvature
from zoo.infer.curvature import gauss_newton, log_joint, output_jacobians, prior_curvature
from zoo.infer.svi.batches import Batches
from zoo.likelihoods import parse_likelihood

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")
REFERENCE = json.loads(Path(__file__).with_name("laplace_reference.json").read_text())


def pair(net, likelihood, num_data=12, priors=None):
    model = zoo.create(
        "laplace",
        net,
        likelihood=parse_likelihood(likelihood).double(),
        num_data=num_data,
        priors=priors,
    )
    return model, model.guide(init_scale=1e-3)


def reference_pair(task):
    row = REFERENCE[task]
    x, y = torch.tensor(row["x"]), torch.tensor(row["y"])
    outputs = 3 if task == "classification" else 1
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs))
    net.load_state_dict({name: torch.tensor(value) for name, value in row["weights"].items()})
    likelihood = (
        "categorical" if task == "classification" else f"gaussian(noise={REFERENCE['noise']})"
    )
    scale = REFERENCE["prior_precision"] ** -0.5
    return *pair(net, likelihood, priors={"*": f"Normal(0, {scale!r})"}), x, y, row


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_posterior_precision_and_evidence_are_those_of_laplace_torch(task, structure):
    model, guide, x, y, row = reference_pair(task)
    diagonal = structure == "diag"
    precision = gauss_newton(model, guide, x, diagonal=diagonal)
    (precision if diagonal else precision.diagonal()).add_(prior_curvature(model, guide))
    expected = torch.tensor(row[f"{structure}_precision"])
    # laplace-torch is off by up to 1.1e-7 from the sum written out in double precision, we are not.
    torch.testing.assert_close(precision, expected, rtol=1e-6, atol=2e-7)
    guide.set_precision(precision, log_joint(model, guide, x, y))
    evidence = guide.metrics()["log_evidence"]
    assert evidence == pytest.approx(row[f"{structure}_log_evidence"], rel=1e-6)


def test_the_matrix_of_a_classifier_is_the_sum_written_out():
    model, guide, x, _, _ = reference_pair("classification")
    f, jacobians = output_jacobians(model, guide, x)
    p = f.softmax(-1)
    information = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    expected = (jacobians.mT @ information @ jacobians).sum(0)
    found = gauss_newton(model, guide, x, diagonal=False)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_linear_predictions_have_the_moments_of_laplace_torch(task):
    model, guide, x, y, row = reference_pair(task)
    model.method.after_training(model, guide, Batches(x, y, batch_size=len(x), seed=0))
    outputs, jacobians = output_jacobians(model, guide, x)
    torch.testing.assert_close(outputs, torch.tensor(row["full_mean"]), rtol=1e-6, atol=1e-9)
    spread = jacobians @ guide.scale_tril
    covariance = torch.tensor(row["full_covariance"])
    torch.testing.assert_close(spread @ spread.mT, covariance, rtol=1e-6, atol=2e-7)
    # The same from draws of the model itself: outputs are linear in the weights.
    with torch.no_grad():
        draws = guide.draw(20_000)
        f = torch.vmap(lambda values: model.outputs(values, x))(draws)
    error = (covariance.diagonal(dim1=1, dim2=2) / 20_000).sqrt()
    assert ((f.mean(0) - outputs).abs() < 5 * error).all()
    ratio = f.var(0) / covariance.diagonal(dim1=1, dim2=2)
    assert ((ratio - 1).abs() < 5 * math.sqrt(2 / 20_000)).all()


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        ("gaussian(noise=0.3)", torch.randn(9, dtype=torch.float64)),
        ("bernoulli", torch.randint(2, (9,)).double()),
        ("poisson", torch.randint(5, (9,)).double()),
        ("categorical", torch.randint(3, (9,))),
    ],
)
def test_for_a_model_linear_in_its_weights_it_is_the_hessian(likelihood, y):
    net = nn.Linear(2, 3 if likelihood == "categorical" else 1)
    model, guide = pair(net, likelihood, num_data=9, priors={"*": "Normal(0.3, 0.7)"})
    x = torch.randn(9, 2)
    precision = gauss_newton(model, guide, x, diagonal=False)
    precision.diagonal().add_(prior_curvature(model, guide))

    def negative(flat):
        values = guide.split(flat)
        prior = torch.distributions.Normal(0.3, 0.7).log_prob(flat).sum()
        f = model.evaluate(values, x)
        return -prior - model.likelihood.distribution(f).log_prob(y).sum()

    hessian = torch.func.hessian(negative)(guide.mode.detach())
    torch.testing.assert_close(precision, hessian, rtol=1e-6, atol=1e-9)
    assert log_joint(model, guide, x, y) == pytest.approx(
        -float(negative(guide.mode).detach()), rel=1e-9
    )
    diagonal = gauss_newton(model, guide, x, diagonal=True) + prior_curvature(model, guide)
    torch.testing.assert_close(diagonal, hessian.diagonal(), rtol=1e-6, atol=1e-9)


def test_information_of_a_student_t_is_that_of_quadrature():
    df, scale = 5.0, 0.7
    model, _ = pair(nn.Linear(2, 2), f"student_t(df={df}, noise=heteroscedastic)")
    f = torch.tensor([[0.2, 0.4]])
    found = curvature._information(model, f)[0]
    scale = float(torch.nn.functional.softplus(f[0, 1])) + 1e-4

    def square_score(which):
        def integrand(y):
            r = (y - 0.2) / scale
            by_loc = (df + 1) * r / (df + r * r) / scale
            by_scale = (-1 + (df + 1) * r * r / (df + r * r)) / scale
            score = by_loc if which == "loc" else by_scale
            return stats.t.pdf(y, df, 0.2, scale) * score**2

        return integrate.quad(integrand, -200, 200, limit=500, points=[0.2])[0]

    slope = float(torch.sigmoid(f[0, 1]))  # of the softplus
    expected = torch.tensor([[square_score("loc"), 0.0], [0.0, square_score("scale") * slope**2]])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_a_bayesian_noise_is_one_more_output():
    model, guide = pair(nn.Linear(2, 1), "gaussian", priors={"noise": "LogNormal(0, 1)"})
    x = torch.randn(12, 2)
    outputs, jacobians = output_jacobians(model, guide, x)
    noise = guide.medians()["noise"]
    assert outputs.shape == (12, 2)
    torch.testing.assert_close(outputs[:, 1], noise.expand(12))
    precision = gauss_newton(model, guide, x, diagonal=False)
    # About log noise every row knows 2; weights and noise are orthogonal.
    torch.testing.assert_close(precision[-1, -1], torch.tensor(24.0))
    torch.testing.assert_close(precision[-1, :-1], torch.zeros(3), atol=1e-9, rtol=0)
    torch.testing.assert_close(jacobians[:, 1, -1], noise.expand(12))


@pytest.mark.parametrize("diagonal", [False, True])
def test_chunks_of_rows_do_not_change_the_sum(monkeypatch, diagonal):
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
    model, guide = pair(net, "categorical", num_data=50)
    x = torch.randn(50, 2)
    whole = gauss_newton(model, guide, x, diagonal=diagonal)
    monkeypatch.setattr(curvature, "CHUNK_NUMBERS", 1000)
    torch.testing.assert_close(gauss_newton(model, guide, x, diagonal=diagonal), whole)


def test_convolutions_have_a_curvature_too():
    net = nn.Sequential(
        nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
    )
    model, guide = pair(net, "categorical", num_data=6)
    x = torch.randn(6, 9)
    full = gauss_newton(model, guide, x, diagonal=False)
    assert torch.linalg.eigvalsh(full).min() > -1e-9
    diagonal = gauss_newton(model, guide, x, diagonal=True)
    torch.testing.assert_close(full.diagonal(), diagonal)


def test_a_likelihood_without_known_information_is_refused():
    class Cauchy(torch.distributions.Cauchy):
        pass

    p = Cauchy(torch.tensor(0.0), torch.tensor(1.0))
    with pytest.raises(ConfigError, match="information of the likelihood Cauchy is not known"):
        curvature._divergence(p, torch.distributions.Gamma(torch.tensor(1.0), torch.tensor(1.0)))
