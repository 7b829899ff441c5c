import numpy as np
import pytest
from scipy import stats
from sklearn import linear_model

from zoo.data import from_arrays
from zoo.fit import references as module
from zoo.fit.references import (
    Inputs,
    logistic,
    poisson,
    prediction_error,
    references,
    ridge,
    subsample,
)


def generator(seed=0):
    return np.random.default_rng(seed)


def test_ridge_chooses_the_penalty_of_least_leave_one_out_error():
    rng = generator()
    x, y = rng.normal(size=(40, 8)), rng.normal(size=40)
    x[:, 0] += y
    best = np.inf
    for penalty in 40 * module.RIDGE_PENALTIES:
        model = linear_model.Ridge(alpha=penalty)
        residuals = [
            y[i] - model.fit(np.delete(x, i, 0), np.delete(y, i)).predict(x[i : i + 1])[0]
            for i in range(40)
        ]
        error = np.mean(np.square(residuals))
        if error < best:
            best, chosen = error, model.fit(x, y)
    found = ridge(x, y)(x, y)
    assert found.prediction == pytest.approx(chosen.predict(x), rel=1e-8)
    expected = stats.norm.logpdf(y, chosen.predict(x), np.sqrt(best))
    # The shortcut centres with all rows, the loop above without the one left out.
    assert found.log_density == pytest.approx(expected, abs=0.05)


def test_ridge_of_more_columns_than_rows_is_finite():
    rng = generator()
    found = ridge(rng.normal(size=(10, 30)), rng.normal(size=10))(np.ones((3, 30)), np.zeros(3))
    assert np.isfinite(found.log_density).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_is_that_of_scikit_learn_at_the_same_penalty(classes, monkeypatch):
    rng = generator()
    x = rng.normal(size=(200, 3))
    y = (x @ rng.normal(size=(3, classes)) + rng.gumbel(size=(200, classes))).argmax(1)
    monkeypatch.setattr(module, "GLM_PENALTIES", np.array([0.01]))
    found = logistic(x, y, classes)(x, y)
    # Two classes have one vector of weights there and two opposite ones here, of half the length.
    strength = 1 / (200 * 0.01) * (2 if classes == 2 else 1)
    model = linear_model.LogisticRegression(C=strength, tol=1e-10, max_iter=5000).fit(x, y)
    assert found.prediction == pytest.approx(model.predict_proba(x), abs=2e-3)
    assert found.log_density == pytest.approx(np.log(found.prediction[np.arange(200), y]))


def test_poisson_regression_is_that_of_scikit_learn_at_the_same_penalty(monkeypatch):
    rng = generator()
    x = rng.normal(size=(300, 3))
    y = rng.poisson(np.exp(1 + x @ [0.5, -0.3, 0]))
    monkeypatch.setattr(module, "GLM_PENALTIES", np.array([0.1]))
    found = poisson(x, y)(x, y)
    model = linear_model.PoissonRegressor(alpha=0.1, tol=1e-10, max_iter=1000).fit(x, y)
    assert found.prediction == pytest.approx(model.predict(x), rel=1e-3)


def test_counts_with_more_spread_than_poisson_have_a_negative_binomial_density():
    rng = generator()
    y = rng.negative_binomial(2, 2 / (2 + 5.0), size=5000)
    density = poisson(np.zeros((5000, 0)), y)(np.zeros((5000, 0)), y).log_density.mean()
    exact = stats.nbinom.logpmf(y, 2, 2 / 7).mean()
    assert density == pytest.approx(exact, abs=0.01)
    assert density > stats.poisson.logpmf(y, 5.0).mean() + 0.3


@pytest.mark.parametrize("task", ["regression", "classification", "counts"])
def test_the_trivial_reference_knows_the_marginal_and_the_kernel_follows_a_curve(task):
    rng = generator()
    x = rng.uniform(-3, 3, size=(800, 2))
    curve = 2 * np.cos(2 * x[:, 0])
    y = {
        "regression": curve + 0.3 * rng.normal(size=800),
        "classification": (rng.uniform(size=800) < 1 / (1 + np.exp(-3 * curve))).astype(int),
        "counts": rng.poisson(np.exp(curve)),
    }[task]
    dataset = from_arrays(x, y, task=task, test_fraction=0.25)
    found = references(dataset)
    errors = {
        name: prediction_error(task, one.prediction, dataset.y_test).mean()
        for name, one in found.items()
    }
    assert errors["linear"] == pytest.approx(errors["trivial"], rel=0.1)  # a cosine is not linear
    assert errors["kernel"] < 0.4 * errors["trivial"]
    density = {name: one.log_density.mean() for name, one in found.items()}
    assert density["kernel"] > density["trivial"] + 0.2
    first = found["trivial"].prediction[0]
    if task == "classification":
        assert first == pytest.approx(np.bincount(dataset.y_train) / 600, abs=1e-3)
    else:
        assert first == pytest.approx(dataset.y_train.mean(), rel=1e-6)


@pytest.mark.parametrize("task", ["regression", "classification", "counts"])
def test_errors_are_smallest_for_the_truth(task):
    rng = generator()
    if task == "classification":
        truth = np.tile([0.2, 0.8], (4000, 1))
        y, other = (rng.uniform(size=4000) < 0.8).astype(int), np.tile([0.4, 0.6], (4000, 1))
    elif task == "counts":
        truth, other = np.full(4000, 3.0), np.full(4000, 4.0)
        y = rng.poisson(truth)
    else:
        truth, other = np.zeros(4000), np.full(4000, 0.3)
        y = rng.normal(size=4000)
    assert prediction_error(task, truth, y).mean() < prediction_error(task, other, y).mean()


def test_many_columns_become_principal_components_and_constant_ones_are_left_out():
    rng = generator()
    x = np.concatenate([rng.normal(size=(50, 150)), np.ones((50, 3))], 1)
    inputs = Inputs(x)
    assert inputs.kept.sum() == 150
    assert inputs.linear(x).shape == (50, 50)  # as many as rows
    assert Inputs(x[:, :5]).linear(x[:, :5]).std(0) == pytest.approx(np.ones(5))


def test_large_data_are_subsampled_with_a_fixed_seed():
    assert subsample(10, 20).tolist() == list(range(10))
    few = subsample(1000, 50)
    assert len(set(few.tolist())) == 50
    assert few.tolist() == subsample(1000, 50).tolist()


def test_a_kernel_at_every_row_does_not_overfit_linear_data():
    """With as many features as rows, leverages are near 1 and residuals near 0."""
    rng = generator()
    x = rng.normal(size=(300, 4))
    y = x @ [1.0, -1.0, 0.5, 0.0] + 0.7 * rng.normal(size=300)
    dataset = from_arrays(x, y, test_fraction=0.2)
    found = references(dataset)
    errors = {name: np.mean((one.prediction - dataset.y_test) ** 2) for name, one in found.items()}
    # The second width costs some; leverages that are cut off gave an error above the trivial one.
    assert errors["kernel"] < 1.3 * errors["linear"] < 0.5 * errors["trivial"]
