import pyro
import pyro.distributions as dist
import pytest
import torch

WEIGHTS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
LEVELS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def scalar(y):
    loc = pyro.sample("loc", dist.Normal(y.new_zeros(()), 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def vector(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def constrained(y):
    one = y.new_ones(())
    p = pyro.sample("p", dist.Beta(2 * one, 2 * one))
    scale = pyro.sample("scale", dist.HalfNormal(one))
    mixture = pyro.sample("mixture", dist.Dirichlet(y.new_ones(3)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(p + mixture @ LEVELS, scale), obs=y)


def hierarchical(y):
    scale = pyro.sample("scale", dist.HalfCauchy(y.new_ones(())))
    loc = pyro.sample("loc", dist.Normal(0.0, scale).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc.sum(), 1.0), obs=y)


def plated(y):
    loc = pyro.sample("loc", dist.Normal(y.new_zeros(()), 1.0))
    w = pyro.sample("w", dist.Normal(y.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("groups", 4, dim=-2):
        effect = pyro.sample("effect", dist.Normal(loc, 1.0))
        with pyro.plate("data", y.shape[-1], dim=-1):
            pyro.sample("y", dist.Normal(effect + w.sum(), 0.5), obs=y)


@pytest.fixture(params=["scalar", "vector", "constrained", "hierarchical", "plated"])
def reference(request):
    """A model, its arguments and the shapes of its latent sites, in order."""
    torch.manual_seed(0)
    y = 3 + torch.randn(20, dtype=torch.float64)
    x = torch.randn(20, 3, dtype=torch.float64)
    return {
        "scalar": (scalar, (y,), {"loc": ()}),
        "vector": (vector, (x, x @ WEIGHTS), {"w": (3,)}),
        "constrained": (constrained, (y,), {"p": (), "scale": (), "mixture": (3,)}),
        "hierarchical": (hierarchical, (y,), {"scale": (), "loc": (2,)}),
        "plated": (plated, (y.reshape(4, 5),), {"loc": (), "w": (2,), "effect": (4, 1)}),
    }[request.param]
