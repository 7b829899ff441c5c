"""Without the private names of nutpie, its public interface gives the same draws."""

import sys

import numpy as np
import nutpie.compiled_pyfunc
import pyro
import pyro.distributions as dist
import pytest
import torch

from zoo.infer import private_nutpie
from zoo.infer.nuts.sampler import sample_nuts

X = torch.tensor([[1.0, 0.2], [0.3, -1.0], [-0.5, 0.4], [1.5, 1.2]], dtype=torch.float64)
Y = torch.tensor([1.0, -0.5, 0.2, 2.0], dtype=torch.float64)


def model():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("obs", len(X)):
        pyro.sample("y", dist.Normal(X @ w, 0.5), obs=Y)


def draws():
    options = {"num_chains": 2, "num_warmup": 100, "num_samples": 50, "executor": "serial"}
    return sample_nuts(model, **options)


@pytest.fixture
def public_models(monkeypatch):
    """Return the list of densities that nutpie is given as functions in Python."""
    made = []
    from_pyfunc = nutpie.compiled_pyfunc.from_pyfunc

    def noted(*args, **options):
        made.append(args)
        return from_pyfunc(*args, **options)

    monkeypatch.setattr(nutpie.compiled_pyfunc, "from_pyfunc", noted)
    return made


@pytest.fixture(scope="module")
def native_draws():
    return draws()


def test_the_installed_release_is_given_a_c_function(public_models):
    assert private_nutpie.is_known()
    draws()
    assert not public_models


def remove_model(patch):
    patch.delattr("nutpie._lib.PyMcModel")


def remove_base_class(patch):
    # The function of the same name hides the module.
    patch.delattr(sys.modules["nutpie.sample"], "CompiledModel")


def change_arguments(patch):
    patch.setattr("nutpie._lib.LogpFunc", lambda address: None)


def rename_the_method(patch):
    """The sampler of a model is made by a method of another name."""
    patch.setattr(private_nutpie, "native_model", lambda *given: nutpie_model_without_method())


def nutpie_model_without_method():
    base = nutpie.compiled_pyfunc.CompiledModel
    return type("Model", (base,), {"n_dim": 2, "shapes": {"flat": (2,)}, "coords": {}})(dims={})


def install_an_unknown_release(patch):
    patch.setattr(private_nutpie, "version", lambda name: "0.17.0")


@pytest.mark.parametrize(
    "change",
    [
        remove_model,
        remove_base_class,
        change_arguments,
        rename_the_method,
        install_an_unknown_release,
    ],
)
def test_another_nutpie_calls_python_and_gives_the_same_draws(
    monkeypatch, native_draws, public_models, change
):
    change(monkeypatch)
    found = draws()
    assert len(public_models) >= 2  # one for each chain
    np.testing.assert_array_equal(found.values["w"], native_draws.values["w"])
    for name, values in native_draws.stats.items():
        np.testing.assert_array_equal(found.stats[name], values, err_msg=name)
