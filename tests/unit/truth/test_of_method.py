"""The closed form that a truth is held against, and the comparison with it."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray
from torch import nn

import zoo
from zoo.truth.criteria import summary_table
from zoo.truth.of_method import EntryTruth, _largest_z, exact_posterior

NOISE = 0.7


def regression(**options):
    net = nn.Sequential(nn.Linear(2, 1)).double()
    settings = {
        "likelihood": f"gaussian(noise={NOISE})",
        "priors": {"*.weight": "Normal(0.8, 0.5)", "*.bias": "Normal(-1, 2)"},
    }
    return zoo.create("mean_field", net, num_data=6, **(settings | options)).double()


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 2)), rng.normal(size=6)


def test_posterior_of_a_regression_is_that_of_conditioning_a_joint_normal():
    """Prior means that are not zero, and a prior scale that differs between the slots."""
    x, y = data()
    mean, prior = np.array([0.8, 0.8, -1.0]), np.diag([0.25, 0.25, 4.0])
    design = np.column_stack([x, np.ones(6)])
    gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + NOISE**2 * np.eye(6))
    expected = mean + gain @ (y - design @ mean)
    sd = np.sqrt(np.diag(prior - gain @ design @ prior))
    found = exact_posterior(regression(), x, y)
    assert found["0.weight"][0] == pytest.approx(expected[:2], rel=1e-6)
    assert found["0.bias"][0] == pytest.approx(expected[2:], rel=1e-6)
    assert found["0.weight"][1] == pytest.approx(sd[:2], rel=1e-6)
    assert found["0.bias"][1] == pytest.approx(sd[2:], rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": "gaussian"},
        {"priors": {"*.weight": "Laplace(0, 1)"}},
        {"bayesian": ["*.weight"], "priors": {"*.weight": "Normal(0, 1)"}},
    ],
)
def test_other_models_have_no_closed_form(options):
    assert exact_posterior(regression(**options), *data()) is None


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(2, 3)),
    ],
)
def test_other_networks_have_no_closed_form(net):
    model = zoo.create("mean_field", net.double(), likelihood="gaussian(noise=1)", num_data=6)
    assert exact_posterior(model, *data()) is None


STATISTICS = ["mean", "sd", "mcse_mean", "mcse_sd"]


def truth(**arrays):
    summary = xarray.Dataset(
        {
            name: (("statistic", *[f"{name}_{k}" for k in range(values.ndim - 1)]), values)
            for name, values in arrays.items()
        },
        coords={"statistic": STATISTICS},
    )
    return SimpleNamespace(summary=summary)


def test_the_largest_difference_is_in_monte_carlo_errors():
    w = np.array([[[1.0, 2.0]], [[0.5, 0.6]], [[0.1, 0.2]], [[0.01, 0.02]]])
    exact = {"w": (np.array([1.2, 2.3]), np.array([0.5, 0.6]))}
    assert _largest_z(truth(w=w), exact) == pytest.approx(2.0)
    exact = {"w": (np.array([1.2, 2.3]), np.array([0.5, 0.53]))}
    assert _largest_z(truth(w=w), exact) == pytest.approx(3.5)


def test_table_has_a_row_for_every_number():
    found = truth(w=np.arange(8.0).reshape(4, 1, 2), noise=np.arange(4.0)).summary
    table = summary_table(found)
    assert list(table.index) == ["w[0, 0]", "w[0, 1]", "noise"]
    assert table.loc["w[0, 1]"].tolist() == [1.0, 3.0, 5.0, 7.0]
    assert list(table.columns) == STATISTICS


@pytest.mark.parametrize(
    ("accepted", "z", "right"),
    [(True, None, True), (True, 5.0, True), (True, 5.01, False), (False, 0.0, False)],
)
def test_a_truth_is_right_if_accepted_and_within_five_errors(accepted, z, right):
    assert EntryTruth(SimpleNamespace(accepted=accepted), None, z).is_right is right
