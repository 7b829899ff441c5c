import json

import pyro
import pyro.distributions as dist
import pytest
import torch

import zoo
from zoo.fit import model_tree
from zoo.fit.model_tree import prior_text


@pytest.mark.parametrize(
    ("prior", "text"),
    [
        (dist.Normal(0.0, 5.0), "Normal(loc=0, scale=5)"),
        (dist.HalfCauchy(torch.tensor(5.0)), "HalfCauchy(scale=5)"),
        (dist.Normal(torch.zeros(3), 1.0).to_event(1), "Normal(loc=0, scale=1)"),
        (dist.Normal(torch.arange(3.0), 1.0), "Normal(loc=3 values, scale=1)"),
        (dist.LogNormal(0.0, 1.0).expand([4]), "LogNormal(loc=0, scale=1)"),
        (
            dist.Beta(torch.tensor(2.0), torch.tensor(0.5)),
            "Beta(concentration1=2, concentration0=0.5)",
        ),
        (dist.Gamma(2.0, 3.0).mask(torch.tensor(True)), "Gamma(concentration=2, rate=3)"),
    ],
)
def test_priors_in_words(prior, text):
    assert prior_text(prior) == text


def test_a_prior_names_the_sites_on_which_it_depends():
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(5.0))
        with pyro.plate("rows", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    fitted = zoo.fit(model, args=(torch.randn(3),), num_steps=5, num_samples=5)
    assert json.loads(fitted.tree().attrs["priors"]) == {
        "mu": "Normal(loc=0, scale=5)",
        "tau": "HalfCauchy(scale=5)",
        "theta": "Normal given mu, tau",
    }


def test_without_known_dependencies_a_prior_has_no_numbers(monkeypatch):
    def unknown(*args):
        raise NotImplementedError

    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        pyro.sample("theta", dist.Normal(mu, 1.0))

    monkeypatch.setattr(model_tree, "get_dependencies", unknown)
    fitted = zoo.fit(model, args=(0,), num_steps=5, num_samples=5)
    assert json.loads(fitted.tree().attrs["priors"]) == {"mu": "Normal", "theta": "Normal"}
