"""What the recipes reach on real data, with fixed seeds; the thresholds are promises."""

import math

import numpy as np
import pytest

import zoo
from zoo.data import load


@pytest.fixture(scope="module")
def digits():
    return load("digits", seed=0)


def metrics(method, dataset, **options):
    steps = {"num_steps": 3000}  # until convergence it takes minutes, see benchmarks.convergence
    fitted = zoo.fit(method, data=dataset, seed=0, progress_bar=False, **(steps | options))
    return fitted.metrics(dataset, fitted.groups(dataset))


def test_group_horseshoe_prunes_digits_and_stays_accurate(digits):
    found = metrics("group_horseshoe", digits)
    assert found["test.accuracy"] >= 0.955
    assert found["weights_left_percent"] <= 60
    assert found["test.pruned.accuracy"] >= 0.95


def test_normal_prior_swapped_in_prunes_nothing(digits):
    found = metrics("group_horseshoe", digits, priors={"*.weight": "Normal(0, 1)"})
    assert found["test.accuracy"] >= 0.96
    assert found["weights_left_percent"] >= 99


def test_mean_field_matches_ridge_regression_on_diabetes():
    from sklearn.linear_model import RidgeCV

    dataset = load("diabetes", seed=0)
    ridge = RidgeCV(alphas=np.logspace(-3, 4, 50)).fit(dataset.X_train, dataset.y_train)
    variance = np.mean((dataset.y_train - ridge.predict(dataset.X_train)) ** 2)
    errors = dataset.y_test - ridge.predict(dataset.X_test)
    ridge_nll = 0.5 * math.log(2 * math.pi * variance) + np.mean(errors**2) / (2 * variance)
    ridge_nll += math.log(dataset.schema.target_scale)
    assert metrics("mean_field", dataset)["test.nll"] <= 1.02 * ridge_nll
