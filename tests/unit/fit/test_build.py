"""Batch size and learning rate that a run gets if none is given."""

import numpy as np
import pytest

from zoo.data import from_arrays
from zoo.fit.build import SMALL_BATCH, SMALL_LR
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.registry import get


def recipe(method="mean_field", net="mlp:3-8-1", **settings):
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(40, 3)), rng.normal(size=40), task="regression")
    return prepare(make_config(method=method, net=net, **settings), dataset=data).svi.recipe


def test_small_networks_until_convergence_take_large_batches_and_steps():
    own = get("mean_field").recipe
    found = recipe()
    assert (found.batch_size, found.lr) == (SMALL_BATCH, SMALL_LR * own.lr)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_steps": 10},
        {"net": "mlp:3-200-200-1"},
        {"schedule": "constant"},
        {"method": "swag"},
    ],
)
def test_other_runs_take_those_of_the_method(settings):
    own = get(settings.get("method", "mean_field")).recipe
    found = recipe(**settings)
    assert (found.batch_size, found.lr) == (own.batch_size, own.lr)


@pytest.mark.parametrize("given", [{"lr": 0.007}, {"batch_size": 16}])
def test_what_is_given_is_taken(given):
    own = get("mean_field").recipe
    found = recipe(**given)
    assert found.lr == given.get("lr", own.lr)
    assert found.batch_size == given.get("batch_size", own.batch_size)


def test_a_resolved_configuration_keeps_its_values():
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(40, 3)), rng.normal(size=40), task="regression")
    first = prepare(make_config(method="mean_field", net="mlp:3-8-1"), dataset=data)
    again = prepare(first.assembly.config, dataset=data)
    assert again.svi.recipe == first.svi.recipe
