import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from zoo.infer.importance import (
    NoReferenceError,
    SeveralModesError,
    importance_reference,
    moments,
    number_of_draws,
)
from zoo.infer.nuts.density import LogDensity

NOISE = 0.7


def regression(rows=40, correlation=0.9, seed=0):
    rng = np.random.default_rng(seed)
    factor = np.linalg.cholesky([[1.0, correlation], [correlation, 1.0]])
    x = rng.normal(size=(rows, 2)) @ factor.T
    return torch.tensor(x), torch.tensor(x @ [1.0, -1.0] + NOISE * rng.normal(size=rows))


def linear(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def funnel(y):
    scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    with pyro.plate("rows", len(y)):
        theta = pyro.sample("theta", dist.Normal(0.0, scale))
        pyro.sample("y", dist.Normal(theta, 10.0), obs=y)


def two_modes():
    w = pyro.sample("w", dist.Normal(0.0, 10.0))
    parts = dist.Normal(torch.tensor([-5.0, 5.0]), 0.5)
    pyro.factor("mixture", torch.logsumexp(parts.log_prob(w), 0))


def test_moments_and_evidence_of_a_conjugate_regression():
    x, y = regression()
    found = importance_reference(
        LogDensity(linear, (x, y)), {"w": torch.zeros(2)}, num_rows=len(y), seed=0
    )
    mean, sd, mean_error, sd_error = moments(found.values["w"], found.log_weights)
    x, y = x.numpy(), y.numpy()
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(2))
    exact = covariance @ x.T @ y / NOISE**2
    assert (np.abs(mean - exact) < 5 * mean_error).all()
    assert (np.abs(sd - np.sqrt(np.diag(covariance))) < 5 * sd_error).all()
    evidence = stats.multivariate_normal(cov=NOISE**2 * np.eye(len(y)) + x @ x.T).logpdf(y)
    # The proposal is the posterior, so that all weights are equal up to the finite differences.
    assert found.log_evidence == pytest.approx(evidence, abs=1e-3)
    assert found.effective > 3900


def test_a_skewed_posterior_by_quadrature():
    y = torch.tensor([0.3, 1.2, 0.8])

    def model():
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Exponential(rate), obs=y)

    density = LogDensity(model)
    found = importance_reference(density, {"rate": torch.tensor(1.0)}, num_rows=3, seed=1)
    mean, sd, mean_error, sd_error = moments(found.values["rate"], found.log_weights)
    exact = stats.gamma(5.0, scale=1 / (1.0 + float(y.sum())))
    assert abs(mean - exact.mean()) < 5 * mean_error
    assert abs(sd - exact.std()) < 5 * sd_error


def test_a_funnel_is_refused():
    with pytest.raises(NoReferenceError, match=r"k-hat|maximum|finite"):
        importance_reference(
            LogDensity(funnel, (torch.linspace(-1, 1, 8),)),
            {"scale": torch.tensor(1.0), "theta": torch.zeros(8)},
            num_rows=8,
            seed=0,
        )


def test_draws_are_limited_by_the_rows():
    assert [number_of_draws(rows) for rows in (0, 300, 200_000, 10**8)] == [4000, 4000, 2000, 500]


def test_weighted_moments_and_their_errors():
    rng = np.random.default_rng(0)
    means, sds = [], []
    for _ in range(200):
        values = rng.normal(1.0, 2.0, size=500)
        mean, sd, mean_error, sd_error = moments(values, np.full(500, -np.log(500)))
        means.append((mean - 1.0) / mean_error)
        sds.append((sd - 2.0) / sd_error)
    # Standard errors of an sd from 200 values are five percent.
    assert np.std(means) == pytest.approx(1.0, abs=0.2)
    assert np.std(sds) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("start", [-4.0, 4.0])
def test_two_modes_are_refused(start):
    with pytest.raises(SeveralModesError, match="several modes") as caught:
        importance_reference(LogDensity(two_modes), {"w": torch.tensor(start)}, num_rows=0, seed=0)
    modes = sorted(caught.value.modes, key=lambda mode: float(mode.values["w"]))
    assert len(modes) == 2
    assert float(modes[0].values["w"]) < 0 < float(modes[1].values["w"])
    assert [mode.share for mode in modes] == pytest.approx([0.5, 0.5], abs=0.01)
