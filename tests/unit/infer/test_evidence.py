"""Evidence of linear models: pinned values, identities, and the method of that name."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError, DataError
from zoo.infer.evidence import (
    EXPONENTS,
    LinearModel,
    best_noise_precision,
    code_bits,
    evidence_table,
    polynomial_features,
    prequential_bits,
    two_part_bits,
)

X = np.linspace(-1, 1, 9)
Y = np.array([-0.9, -0.6, -0.7, -0.1, 0.1, 0.2, 0.6, 0.9, 0.8])
ROWS = json.loads(Path(__file__).with_name("evidence_reference.json").read_text())["rows"]


def polynomial(degree):
    return LinearModel(polynomial_features(X, degree), Y, 1.0, 25.0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["degree"])
def test_polynomials_have_the_pinned_values(row):
    model = polynomial(row["degree"])
    assert model.log_evidence == pytest.approx(float(row["log_evidence"]), rel=1e-9)
    assert model.mean_field_elbo == pytest.approx(float(row["best_mean_field_elbo"]), rel=1e-9)
    assert model.log_det == pytest.approx(float(row["log_det_A"]), rel=1e-9)
    if row["posterior_mean"] is not None:
        expected = [float(value) for value in row["posterior_mean"]]
        assert model.mean == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("degree", [0, 1, 5])
def test_evidence_is_the_density_of_the_data_without_weights(degree):
    features = polynomial_features(X, degree)
    alpha = np.linspace(0.5, 2.0, degree + 1)
    center = np.linspace(-0.3, 0.4, degree + 1)
    model = LinearModel(features, Y, alpha, 25.0, center)
    covariance = np.eye(9) / 25 + features @ np.diag(1 / alpha) @ features.T
    expected = stats.multivariate_normal.logpdf(Y, features @ center, covariance)
    assert model.log_evidence == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("degree", [0, 1, 5])
def test_elbo_of_a_gaussian_is_the_evidence_less_its_divergence_from_the_posterior(degree):
    model = polynomial(degree)
    covariance = np.linalg.inv(model.precision)
    assert model.elbo(model.mean, covariance) == pytest.approx(model.log_evidence, rel=1e-9)
    factorised = np.diag(1 / np.diag(model.precision))
    assert model.elbo(model.mean, factorised) == pytest.approx(model.mean_field_elbo, rel=1e-9)
    # Far from the posterior: the divergence between two normals, written out.
    mean, wide = model.mean + 0.1, 2 * covariance + 0.01 * np.eye(degree + 1)
    gap = mean - model.mean
    divergence = 0.5 * (
        np.trace(model.precision @ wide)
        + gap @ model.precision @ gap
        - len(gap)
        - model.log_det
        - np.linalg.slogdet(wide)[1]
    )
    assert model.elbo(mean, wide) == pytest.approx(model.log_evidence - divergence, rel=1e-9)


def test_evidence_picks_the_degree_where_least_squares_does_not():
    table = evidence_table(X, Y, range(8), noise_precision=25, resolution=0.1)
    assert table["maximum_likelihood"].is_monotonic_increasing
    assert table["maximum_likelihood"].idxmax() == 7
    for column in ("log_evidence", "mean_field_elbo"):
        assert table[column].idxmax() == 1
    for column in ("evidence_bits", "bits_back_bits", "two_part_bits", "left_out_rmse"):
        assert table[column].idxmin() == 1
    # A factorised posterior costs its divergence from the exact one.
    assert (table["bits_back_bits"] >= table["evidence_bits"] - 1e-9).all()


@pytest.mark.parametrize("degree", [0, 1, 4])
def test_sending_rows_by_their_prediction_costs_the_evidence(degree):
    model = polynomial(degree)
    bits = prequential_bits(model, 0.1, plug_in=False)
    assert bits == pytest.approx(code_bits(model.log_evidence, model, 0.1), rel=1e-9)
    assert bits != pytest.approx(prequential_bits(model, 0.1, plug_in=True), rel=1e-3)


@pytest.mark.parametrize(("noise", "interior"), [(0.2, False), (0.005, True)])
def test_the_two_part_code_is_what_its_parts_cost(noise, interior):
    model = LinearModel(polynomial_features(X, 1), Y, 1.0, noise**-2)
    lengths = []
    for k in EXPONENTS:
        rounded = np.round(model.mean * 2**k) / 2**k
        cells = stats.norm.cdf(rounded + 2.0**-k / 2) - stats.norm.cdf(rounded - 2.0**-k / 2)
        data = stats.norm.logpdf(Y, model.features @ rounded, noise).sum() / math.log(2)
        lengths.append(-np.log2(cells).sum() - data - 9 * math.log2(0.1))
    found = two_part_bits(model, 0.1)
    assert found == pytest.approx(min(lengths) + math.log2(len(EXPONENTS)), rel=1e-9)
    # With much noise whole numbers say enough; with little, weights need digits, but not all.
    assert (0 < int(np.argmin(lengths)) < len(EXPONENTS) - 1) == interior


def test_a_two_part_code_is_longer_than_the_evidence_on_average():
    rng = np.random.default_rng(0)
    features = polynomial_features(X, 1)
    excess = []
    for _ in range(200):
        y = features @ rng.normal(size=2) + 0.2 * rng.normal(size=9)
        model = LinearModel(features, y, 1.0, 25.0)
        excess.append(two_part_bits(model, 0.1) - code_bits(model.log_evidence, model, 0.1))
    assert np.mean(excess) > 5 * np.std(excess) / math.sqrt(200)


def test_leave_one_out_needs_no_second_fit():
    model = polynomial(3)
    errors = []
    for row in range(9):
        kept = np.arange(9) != row
        weights = np.linalg.lstsq(model.features[kept], Y[kept], rcond=None)[0]
        errors.append(Y[row] - model.features[row] @ weights)
    assert model.left_out_rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-9)


@pytest.mark.parametrize("largest", [1.0, 9.0])
@pytest.mark.parametrize("degree", [0, 1, 6])
def test_the_best_noise_maximises_the_evidence(degree, largest):
    features = polynomial_features(X, degree)
    prior_precision = np.linspace(largest, 1.0, degree + 1)

    def negative(log_precision):
        return -LinearModel(features, Y, prior_precision, math.exp(log_precision)).log_evidence

    found = math.log(best_noise_precision(features, Y, prior_precision))
    best = optimize.minimize_scalar(negative, bounds=(-3, 8), method="bounded")
    assert found == pytest.approx(best.x, abs=1e-4)
    assert negative(found) <= best.fun + 1e-9


def test_more_weights_than_rows_leave_a_best_noise():
    features = np.random.default_rng(0).normal(size=(5, 12))
    y = features[:, 0]
    found = best_noise_precision(features, y, 1.0)
    assert np.isfinite(found)
    assert found > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearModel(np.ones((3, 2)), np.ones(4), 1.0, 1.0), "one row per observation"),
        (
            lambda: LinearModel(np.ones((3, 2)), np.ones(3), -1.0, 1.0),
            "precisions must be positive",
        ),
        (lambda: LinearModel(np.ones((3, 2)), np.ones(3), 1.0, 0.0), "precisions must be positive"),
        (
            lambda: LinearModel(np.full((3, 2), 1e10), np.ones(3), 1.0, 1.0).log_det,
            "not positive definite",
        ),
    ],
)
def test_impossible_models_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


# ---------------------------------------------------------------------- the method


def fitted(degree, method="evidence", **options):
    dataset = from_arrays(X[:, None], Y, task="regression")
    return zoo.fit(
        method,
        data=dataset,
        net=f"polynomial:{degree}",
        likelihood="gaussian(noise=0.2)",
        dtype="float64",
        num_samples=10,
        progress_bar=False,
        **options,
    )


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_the_method_reaches_the_pinned_evidence_without_a_step(degree):
    fit = fitted(degree)
    row = ROWS[degree]
    assert fit.assembly.guide.metrics()["log_evidence"] == pytest.approx(
        float(row["log_evidence"]), rel=1e-6
    )
    assert len(fit.losses) == 0
    exact = polynomial(degree)
    # The slots are weight, then bias; the powers start with the constant.
    order = [*range(1, degree + 1), 0]
    mode = fit.assembly.guide.mode.detach().numpy()
    assert mode == pytest.approx(exact.mean[order], rel=1e-6)
    tril = fit.assembly.guide.scale_tril.numpy()
    covariance = np.linalg.inv(exact.precision)[np.ix_(order, order)]
    assert tril @ tril.T == pytest.approx(covariance, rel=1e-6, abs=1e-12)


def test_arrays_are_used_as_they_are():
    dataset = from_arrays(X[:, None], Y, task="regression")
    assert dataset.X_train[:, 0] == pytest.approx(X)
    assert dataset.y_train == pytest.approx(Y)


def test_noise_that_is_not_given_has_the_largest_evidence():
    dataset = from_arrays(X[:, None], Y, task="regression")
    fit = zoo.fit("evidence", data=dataset, net="polynomial:2", dtype="float64", progress_bar=False)
    found = float(fit.assembly.model.likelihood.log_noise.detach().exp()) ** -2
    expected = best_noise_precision(polynomial_features(X, 2), Y, 1.0)
    assert found == pytest.approx(expected, rel=1e-6)


def test_priors_decide_the_evidence():
    fit = fitted(2, priors={"*weight": "Normal(0.5, 0.3)", "*bias": "Normal(0, 2)"})
    exact = LinearModel(
        polynomial_features(X, 2), Y, np.array([0.25, 1 / 0.09, 1 / 0.09]), 25.0, [0, 0.5, 0.5]
    )
    found = fit.assembly.guide.metrics()["log_evidence"]
    assert found == pytest.approx(exact.log_evidence, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"net": "mlp:1-4-1"}, "linear in its weights"),
        ({"likelihood": "student_t"}, "Gaussian likelihood with one noise"),
        ({"likelihood": "gaussian(noise=heteroscedastic)"}, "Gaussian likelihood with one noise"),
        ({"priors": {"*": "Laplace(0, 1)"}}, "needs a prior Normal"),
        ({"priors": {"*weight": "Normal(0, HalfNormal(1))"}}, "needs a prior Normal"),
        ({"priors": {"noise": "HalfNormal(1)"}}, "none on the noise"),
        ({"bayesian": ["*weight"]}, "needs a prior Normal"),
    ],
)
def test_what_has_no_closed_form_is_refused_before_anything_is_written(options, message, tmp_path):
    dataset = from_arrays(X[:, None], Y, task="regression")
    with pytest.raises(ConfigError, match=message):
        zoo.fit(
            "evidence",
            data=dataset,
            out=tmp_path / "run",
            **({"net": "polynomial:2"} | options),
        )
    assert not (tmp_path / "run").exists()


def test_the_report_judges_the_fit_and_not_an_optimisation(tmp_path):
    fit = fitted(1, out=tmp_path / "run")
    findings = json.loads((fit.path / "findings.json").read_text())["findings"]
    judged = {f["check"] for f in findings if f["check"].startswith("optimisation")}
    assert judged <= {"optimisation.start", "optimisation.objective"}
    metrics = json.loads((fit.path / "metrics.json").read_text())
    assert metrics["log_evidence"] == pytest.approx(-1.2069734911219693, rel=1e-6)
    assert metrics["steps"] == 0
    loaded = zoo.load(fit.path)
    assert loaded.assembly.guide.metrics() == fit.assembly.guide.metrics()
