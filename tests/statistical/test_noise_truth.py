"""Methods with noise on activations against answers that were computed without them.

One multiplier of a weight that is held at one: y_i ~ N(theta x_i, sd^2). Small enough for
quadrature, and for the exact optimum of the variational objective.
"""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import nn

import zoo
from guides.distributions import TruncatedLogNormal
from zoo.distributions import SmoothLogUniform, TruncatedLogUniform
from zoo.infer.svi.loop import SVI
from zoo.likelihoods import parse_likelihood
from zoo.registry import Recipe

# Posteriors under log theta ~ U(-20, 0) by quadrature, and the best truncated log-normal by an
# optimiser with six digits.
TOYS = {
    "strong data": {
        "x": [1.0, 2.0, -1.0, 3.0],
        "y": [0.6, 1.1, -0.4, 1.5],
        "sd": 0.1,
        "log_evidence": -0.896108346688506,
        "mean": 0.512027976048763,
        "sd_theta": 0.0258530355749374,
        "mean_log": -0.670655636017638,
        "best": {"mu": -0.67063442, "sigma": 0.05036231, "elbo": -0.89802093, "mean": 0.51203298},
    },
    "weak data": {
        "x": [1.0, 2.0, -1.0],
        "y": [0.05, -0.1, 0.1],
        "sd": 0.5,
        "log_evidence": -0.814911687542743,
        "mean": 0.0120098463460048,
        "sd_theta": 0.0405051831469189,
        "mean_log": -10.8644092372199,
        "best": {"mu": -12.695979, "sigma": 6.544170, "elbo": -0.89706233, "mean": 0.01502631},
    },
}


@pytest.fixture(params=list(TOYS))
def toy(request):
    return TOYS[request.param]


def data(toy):
    return (
        torch.tensor(toy["x"], dtype=torch.float64).unsqueeze(1),
        torch.tensor(toy["y"], dtype=torch.float64),
    )


def model_of(method, toy, priors=None):
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(net.weight)
    net.weight.requires_grad_(False)
    return zoo.create(
        method,
        net,
        likelihood=parse_likelihood(f"gaussian(noise={toy['sd']})").double(),
        num_data=len(toy["y"]),
        priors=priors,
    )


def log_likelihood(toy, theta):
    x, y = np.array(toy["x"]), np.array(toy["y"])
    return stats.norm.logpdf(y, np.multiply.outer(theta, x), toy["sd"]).sum(-1)


def train(model, toy, num_steps=2000, lr=0.03, **options):
    guide = model.guide(init_scale=0.3)
    svi = SVI(
        model,
        guide,
        *data(toy),
        recipe=Recipe(num_steps=num_steps, batch_size=99, lr=lr, schedule="cosine", kl_warmup=0.0),
        seed=0,
        num_particles=64,
        vectorize_particles=True,
    )
    svi.run(progress_bar=False)
    return guide


def quadrature_over_log(toy, function):
    """Integrate the likelihood times a function of theta over log theta ~ U(-20, 0)."""
    points = [-1.0, -0.7, -0.6] if toy["sd"] < 0.2 else None

    def integrand(t):
        return math.exp(log_likelihood(toy, math.exp(t))) * function(math.exp(t)) / 20

    return integrate.quad(integrand, -20, 0, points=points, limit=500, epsabs=1e-12)[0]


def test_quadrature_gives_the_reference_values(toy):
    evidence = quadrature_over_log(toy, lambda theta: 1.0)
    mean = quadrature_over_log(toy, lambda theta: theta) / evidence
    square = quadrature_over_log(toy, lambda theta: theta**2) / evidence
    assert math.log(evidence) == pytest.approx(toy["log_evidence"], rel=1e-6)
    assert mean == pytest.approx(toy["mean"], rel=1e-6)
    assert math.sqrt(square - mean**2) == pytest.approx(toy["sd_theta"], rel=1e-6)


def structured_bp_elbo(toy, mu, sigma):
    """ELBO in closed form: the likelihood is quadratic in theta."""
    bounds = torch.tensor(-20.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    loc, scale = (torch.tensor(v, dtype=torch.float64) for v in (mu, sigma))
    q = TruncatedLogNormal(loc, scale, *bounds)
    kl = float(torch.distributions.kl_divergence(q, TruncatedLogUniform(*bounds)))
    x, y, variance = np.array(toy["x"]), np.array(toy["y"]), toy["sd"] ** 2
    square = (y**2).sum() - 2 * (x * y).sum() * float(q.mean)
    square += (x**2).sum() * float(q.second_moment)
    return -0.5 * len(y) * math.log(2 * math.pi * variance) - 0.5 * square / variance - kl


def test_closed_form_has_the_reference_optimum(toy):
    best = toy["best"]
    elbo = structured_bp_elbo(toy, best["mu"], best["sigma"])
    assert elbo == pytest.approx(best["elbo"], abs=1e-7)
    assert elbo < toy["log_evidence"]
    for factor in (0.97, 1.03):
        assert structured_bp_elbo(toy, factor * best["mu"], best["sigma"]) < elbo
        assert structured_bp_elbo(toy, best["mu"], factor * best["sigma"]) < elbo


def test_structured_bp_reaches_the_exact_optimum_of_its_objective(toy):
    # With weak data the location goes from 0 to -12.7: a step of 0.03 would be too short for that.
    guide = train(model_of("structured_bp", toy), toy, lr=0.1)["input"]
    mu, log_sigma = (float(p.detach()) for p in (guide["input"].loc, guide["input"].log_scale))
    # The noise of the last steps is what is left of the gap; a wrong KL is off by tenths of a nat.
    assert structured_bp_elbo(toy, mu, math.exp(log_sigma)) == pytest.approx(
        toy["best"]["elbo"], abs=2e-3
    )
    assert float(guide.means().detach()) == pytest.approx(toy["best"]["mean"], rel=0.05)


def test_unit_without_signal_is_pruned_and_one_with_signal_is_kept():
    for name, kept in (("strong data", True), ("weak data", False)):
        guide = train(model_of("structured_bp", TOYS[name]), TOYS[name], num_steps=500)["input"]
        assert bool(guide.group_scores() <= guide.default_threshold) == kept


@pytest.mark.parametrize("method", ["structured_bp"])
def test_nuts_on_the_same_model_has_the_posterior_of_quadrature(toy, method):
    found = zoo.truth(model_of(method, toy), data(toy), cache=False, progress_bar=False)
    summary = found.summary["input"].to_dataframe()["input"].unstack("statistic")
    row = summary.iloc[0]
    for statistic, wanted in (("mean", toy["mean"]), ("sd", toy["sd_theta"])):
        assert abs(row[statistic] - wanted) < 5 * row[f"mcse_{statistic}"]
    logs = np.log(found.draws.values["input"])
    z = (logs.mean() - toy["mean_log"]) / (logs.std() / math.sqrt(row["ess_bulk"]))
    assert abs(z) < 5


def dropout_elbo(toy, alpha):
    """ELBO of Gaussian noise N(1, alpha) with the published approximation of the KL."""
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    kl = k1 / (1 + math.exp(k2 + k3 * math.log(alpha))) + 0.5 * math.log1p(1 / alpha)
    x, y, variance = np.array(toy["x"]), np.array(toy["y"]), toy["sd"] ** 2
    square = ((y - x) ** 2).sum() + alpha * (x**2).sum()
    return -0.5 * len(y) * math.log(2 * math.pi * variance) - 0.5 * square / variance - kl


def test_variational_dropout_reaches_the_exact_optimum_of_its_objective():
    toy = {"x": [0.3, -0.2, 0.4], "y": [0.3, -0.1, 0.5], "sd": 0.3}
    best = optimize.minimize_scalar(
        lambda log_alpha: -dropout_elbo(toy, math.exp(log_alpha)),
        bounds=(-6, 0),
        method="bounded",
        options={"xatol": 1e-8},
    )
    assert -5 < best.x < -0.1  # inside the bounds
    guide = train(model_of("variational_dropout", toy), toy)["input"]
    log_alpha = float(guide["input"].log_rate().detach())
    assert dropout_elbo(toy, math.exp(log_alpha)) == pytest.approx(-best.fun, abs=2e-3)
    assert log_alpha == pytest.approx(best.x, abs=0.1)


def test_strong_data_leave_less_noise_than_weak_data():
    rates = [
        train(model_of("variational_dropout", t), t, num_steps=500)["input"].dropout_rates().item()
        for t in ({"x": [1.0] * 8, "y": [1.0] * 8, "sd": sd} for sd in (0.1, 10.0))
    ]
    assert rates[0] < 0.05 < 0.4 < rates[1] <= 0.5


@pytest.mark.slow
def test_nuts_on_the_proper_counterpart_of_dropout_has_the_posterior_of_quadrature():
    toy = TOYS["strong data"]
    prior = SmoothLogUniform(
        torch.tensor(-8.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    )

    def integral(function):
        def integrand(s):
            density = float(prior.log_prob(torch.tensor(s, dtype=torch.float64)).exp())
            return math.exp(log_likelihood(toy, s)) * density * function(s)

        return integrate.quad(integrand, 0.2, 0.9, limit=200)[0]  # beyond lies less than 1e-30

    mean = integral(lambda s: s) / integral(lambda s: 1.0)
    square = integral(lambda s: s**2) / integral(lambda s: 1.0)
    priors = zoo.registry.get("variational_dropout").small_problem["priors"]
    model = model_of("variational_dropout", toy, priors)
    found = zoo.truth(model, data(toy), cache=False, progress_bar=False)
    row = found.summary["input"].sel(input_dim_0=0).to_pandas()
    assert abs(row["mean"] - mean) < 5 * row["mcse_mean"]
    assert abs(row["sd"] - math.sqrt(square - mean**2)) < 5 * row["mcse_sd"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["structured_bp", "variational_dropout"])
def test_truth_of_the_small_problem_is_accepted(method):
    from zoo.truth.of_method import entry_truth

    # Inputs that may be zero make a wide plateau next to narrow modes: small steps, deep trees.
    found = entry_truth(method, {}, cache=False, progress_bar=False, max_seconds=900.0)
    assert found.is_right, found.truth.reasons
