"""The comparison with reference draws finds what it should, and its models are those of Stan."""

import json
import math
import zipfile

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import stats

from benchmarks.posteriordb import comparison, fits, models, reference
from zoo.errors import ConfigError
from zoo.infer.nuts.density import LogDensity


def normal_draws(seed, mean=0.0, sd=1.0):
    rng = np.random.default_rng(seed)
    return {"a": mean + sd * rng.standard_normal((4, 1000)), "b": rng.standard_normal((4, 1000))}


def test_scores_of_equal_laws_are_those_of_a_standard_normal():
    scores = []
    for seed in range(100):
        ours = comparison.moments(normal_draws(2 * seed))
        theirs = comparison.moments(normal_draws(2 * seed + 1))
        scores.append(np.stack(list(comparison.z_scores(ours, theirs).values())))
    means, sds = np.stack(scores, 1).reshape(2, -1)
    for z in (means, sds):  # 200 each: five standard errors of a mean and a mean square
        assert abs(z.mean()) < 5 / math.sqrt(200)
        assert abs((z**2).mean() - 1) < 5 * math.sqrt(2 / 200)


def test_score_is_the_difference_in_combined_errors():
    ours = comparison.Moments(("a",), *map(np.array, ([1.0], [2.0], [0.3], [0.6])))
    theirs = comparison.Moments(("a",), *map(np.array, ([0.0], [1.0], [0.4], [0.8])))
    scores = comparison.z_scores(ours, theirs)
    assert scores["mean"] == pytest.approx(2.0, rel=1e-12)
    assert scores["sd"] == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("mean", "sd", "worst"), [(0.2, 1.0, "mean a"), (0.0, 1.2, "sd a")])
def test_wrong_draws_disagree_and_the_worst_parameter_is_named(mean, sd, worst):
    theirs = comparison.moments(normal_draws(0))
    assert comparison.agreement(comparison.moments(normal_draws(1)), theirs)["agrees"]
    row = comparison.agreement(comparison.moments(normal_draws(1, mean, sd)), theirs)
    assert not row["agrees"]
    assert (row["comparisons"], row["of"]) == (4, worst)


def test_distance_is_in_units_of_the_reference():
    theirs = comparison.Moments(
        ("a", "b"), *map(np.array, ([0.0, 1.0], [2.0, 4.0], [0, 0], [0, 0]))
    )
    ours = comparison.Moments(("a", "b"), *map(np.array, ([1.0, 1.0], [1.0, 4.0], [0, 0], [0, 0])))
    assert comparison.distance(ours, theirs) == pytest.approx(
        {
            "max |mean diff|/sd": 0.5,
            "rms mean diff/sd": math.sqrt(0.125),
            "min sd ratio": 0.5,
            "median sd ratio": 0.75,
            "max sd ratio": 1.0,
        }
    )


def test_parameters_in_another_order_are_refused():
    draws = normal_draws(0)
    swapped = comparison.moments(dict(reversed(draws.items())))
    with pytest.raises(ValueError, match="not those of the reference"):
        comparison.z_scores(swapped, comparison.moments(draws))


def test_elements_are_counted_from_one():
    named = comparison.scalars({"beta": np.arange(12.0).reshape(2, 3, 2), "s": np.ones((2, 3))})
    assert list(named) == ["beta[1]", "beta[2]", "s"]
    assert named["beta[2]"][1, 0] == 7.0


def test_table_leaves_blank_what_does_not_apply():
    text = comparison.as_text(pd.DataFrame([{"method": "nuts", "z": 1.23456}, {"method": "svi"}]))
    assert "1.235" in text
    assert "NaN" not in text


def joint(model, args, values):
    data = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
    trace = poutine.trace(poutine.condition(model, data=data)).get_trace(*args)
    return float(trace.log_prob_sum())


X = np.array([[1.0, 0.5], [1.0, -2.0], [1.0, 0.25]])
Y = np.array([0.5, -1.0, 2.0])
BETA, SIGMA = np.array([0.3, -0.7]), 1.7
RESPONSE = stats.norm.logpdf(Y, X @ BETA, SIGMA).sum()


@pytest.mark.parametrize(
    ("model", "values", "prior"),
    [
        (models.nes, {"beta": BETA, "sigma": SIGMA}, 0.0),
        (
            models.kidscore_interaction,
            {"beta": BETA, "sigma": SIGMA},
            stats.halfcauchy.logpdf(SIGMA, scale=2.5),
        ),
        (
            models.blr,
            {"beta": BETA, "sigma": SIGMA},
            stats.norm.logpdf(BETA, 0, 10).sum() + stats.halfnorm.logpdf(SIGMA, scale=10),
        ),
        (
            models.diamonds,
            {"b": BETA, "Intercept": 0.0, "sigma": SIGMA},
            stats.norm.logpdf(BETA).sum()
            + stats.t.logpdf(0.0, 3, 8, 10)
            + math.log(2)
            + stats.t.logpdf(SIGMA, 3, 0, 10),
        ),
    ],
)
def test_regressions_have_the_density_of_their_stan_program(model, values, prior):
    args = (torch.from_numpy(X), torch.from_numpy(Y))
    assert joint(model, args, values) == pytest.approx(prior + RESPONSE, rel=1e-6)
    assert set(LogDensity(model, args).shapes) == set(values)


def test_both_forms_of_the_schools_are_one_posterior():
    scale, y = np.array([1.0, 2.0, 3.0]), Y
    mu, tau, z = 0.4, 1.3, np.array([0.2, -1.0, 0.6])
    theta = mu + tau * z
    wanted = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5)
    wanted += stats.norm.logpdf(z).sum() + stats.norm.logpdf(y, theta, scale).sum()
    args = (torch.from_numpy(scale), torch.from_numpy(y))
    values = {"mu": mu, "tau": tau}
    noncentred = joint(models.eight_schools_noncentred, args, values | {"z": z})
    centred = joint(models.eight_schools_centred, args, values | {"theta": theta})
    assert noncentred == pytest.approx(wanted, rel=1e-6)
    assert centred + 3 * math.log(tau) == pytest.approx(wanted, rel=1e-6)


def zipped(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(path.name.removesuffix(".zip"), json.dumps(content))


def test_folder_of_posteriordb_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv(reference.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"must name the folder posterior_database.*Got"):
        reference.folder()
    (tmp_path / "posteriors").mkdir()
    (tmp_path / "posteriors/d-m.json").write_text(json.dumps({"data_name": "d"}))
    zipped(tmp_path / "data/data/d.json.zip", {"y": [1, 2]})
    draws = tmp_path / "reference_posteriors/draws/draws/d-m.json.zip"
    zipped(draws, [{"mu": [1.0, 2.0, 3.0]}, {"mu": [4.0, 5.0, 6.0]}])
    root = reference.folder()
    assert reference.names(root) == ["d-m"]
    assert reference.read_data(root, "d-m") == {"y": [1, 2]}
    np.testing.assert_array_equal(reference.read_draws(root, "d-m")["mu"][1], [4.0, 5.0, 6.0])


def test_missing_folder_is_named(monkeypatch):
    monkeypatch.delenv(reference.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"ZOO_POSTERIORDB must name .* It is not set"):
        reference.folder()


def collinear(x, y):
    """A regression with known noise: its posterior is normal."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("obs_id", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("family", fits.FAMILIES)
def test_fits_reach_the_best_of_their_family(family, double_precision):
    """The best factorised normal has variances 1 / A_ii, and lies KL(q, p) below the evidence."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(30, 1)), 2, axis=1) + 0.1 * rng.normal(size=(30, 2))
    y = x.sum(1) + 0.5 * rng.normal(size=30)
    precision = np.eye(2) + x.T @ x / 0.25
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    evidence = stats.multivariate_normal(np.zeros(30), 0.25 * np.eye(30) + x @ x.T).logpdf(y)
    kl = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    sd = np.diag(precision) ** -0.5
    if family == "full_rank":
        kl, sd = 0.0, np.sqrt(np.diag(np.linalg.inv(precision)))
    found = fits.fit(collinear, (torch.from_numpy(x), torch.from_numpy(y)), family, {})
    assert found.converged
    draws = found.values["w"][0]
    # Rounds stop when they gain less than PROGRESS, and 10,000 draws have noise of their own. What
    # is missing of the ELBO bounds the mean by the posterior, d' A d / 2, and sds by (s - 1)^2.
    assert abs(found.elbo - (evidence - kl)) < fits.PROGRESS + 5 * kl / 100
    bound = np.sqrt(2 * fits.PROGRESS * np.diag(np.linalg.inv(precision)))
    assert (np.abs(draws.mean(0) - mean) < bound + 5 * sd / 100).all()
    np.testing.assert_allclose(draws.std(0), sd, rtol=np.sqrt(fits.PROGRESS) + 5 / np.sqrt(2) / 100)


def test_a_fit_that_is_given_up_says_so(double_precision):
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = fits.fit(collinear, (x, torch.ones(2)), "mean_field", {}, max_rounds=1)
    assert (found.converged, found.steps) == (False, fits.ROUND)
