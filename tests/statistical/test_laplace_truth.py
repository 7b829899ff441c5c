"""Laplace and evidence against the exact posterior of their small problem."""

import numpy as np
import pytest
import torch

import zoo
from zoo.data import load
from zoo.infer.evidence import LinearModel
from zoo.registry import get
from zoo.truth.of_method import exact_posterior


@pytest.fixture(scope="module")
def diabetes():
    return load("diabetes", seed=0)


def fit(method, dataset, **options):
    """Fit by steps that see all rows, so that nothing moves the mode about."""
    problem = {k: v for k, v in get(method).small_problem.items() if k != "data"}
    problem |= {"batch_size": len(dataset.X_train), "num_steps": 6000}
    return zoo.fit(
        method, data=dataset, seed=0, dtype="float64", progress_bar=False, **(problem | options)
    )


def moments(fitted):
    return {
        name: (site.loc.detach().numpy().ravel(), site.log_scale.exp().numpy().ravel())
        for name, site in fitted.assembly.guide.sites().items()
    }


@pytest.mark.parametrize(("method", "mean_tolerance"), [("evidence", 1e-6), ("laplace", 0.02)])
def test_posterior_of_the_small_problem_is_the_exact_one(diabetes, method, mean_tolerance):
    """The mode that Adam finds is within a fiftieth of a posterior sd."""
    fitted = fit(method, diabetes)
    exact = exact_posterior(fitted.assembly.model, diabetes.X_train, diabetes.y_train)
    for name, (mean, sd) in exact.items():
        got_mean, got_sd = moments(fitted)[name]
        assert np.abs((got_mean - mean) / sd).max() < mean_tolerance
        assert got_sd == pytest.approx(sd, rel=1e-6)


def test_evidence_of_both_is_the_density_of_the_data(diabetes):
    design = np.column_stack([diabetes.X_train, np.ones(len(diabetes.X_train))])
    model = LinearModel(design.astype(float), diabetes.y_train.astype(float), 1.0, 0.7**-2)
    found = {m: fit(m, diabetes).assembly.guide.metrics()["log_evidence"] for m in METHODS}
    assert found["evidence"] == pytest.approx(model.log_evidence, rel=1e-6)
    # Half the squared distance of the trained mode from the true one is lost: 11 weights, 0.02 sd.
    assert found["laplace"] == pytest.approx(model.log_evidence, abs=11 * 0.5 * 0.02**2 * 5)
    assert found["laplace"] <= model.log_evidence + 1e-9


METHODS = ("evidence", "laplace")


def test_predictions_of_a_linear_model_have_the_exact_spread(diabetes):
    fitted = fit("evidence", diabetes, num_samples=4000)
    x = diabetes.X_test[:5]
    design = np.column_stack([x, np.ones(5)]).astype(float)
    train = np.column_stack([diabetes.X_train, np.ones(len(diabetes.X_train))]).astype(float)
    precision = np.eye(11) + train.T @ train / 0.49
    exact = np.sqrt(np.diag(design @ np.linalg.solve(precision, design.T)))
    with torch.no_grad():
        f = fitted.outputs(x, fitted.draws.values)[..., 0]
    ratio = f.std(0).numpy() / exact
    assert np.abs(ratio - 1).max() < 5 / np.sqrt(2 * 4000)
