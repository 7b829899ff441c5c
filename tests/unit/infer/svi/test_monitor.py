import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import zoo
from guides.mean_field import MeanField
from zoo.fit.any_model import BoundModel
from zoo.infer.svi import monitor as module
from zoo.infer.svi.monitor import Monitor, Outputs, change_in_sds, observed_elements
from zoo.infer.svi.objective import Objective, elbo_draws


def network(num_rows=30, *, local=True, method="mean_field"):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(num_rows, 3, generator=generator)
    y = x.sum(1)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = zoo.create(method, net, likelihood="gaussian(noise=0.5)", num_data=num_rows)
    guide = model.guide(init_scale=0.05)
    return Objective(model, guide, local=local, validate=False), (x, y)


def test_estimates_repeat_themselves_and_leave_the_random_numbers_alone():
    objective, rows = network()
    monitor, before = Monitor(objective, rows, batch_size=8, seed=1), torch.get_rng_state()
    first = monitor.elbos(5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    np.testing.assert_array_equal(monitor.elbos(7)[:5], first)
    assert len(np.unique(first)) == 5


def test_estimates_are_those_of_the_elbo():
    objective, rows = network()
    found = Monitor(objective, rows, batch_size=8, seed=1).elbos(400)
    wanted = elbo_draws(objective.model, objective.guide, *rows, num_draws=400)
    error = math.hypot(found.std() / 20, float(wanted.std()) / 20)
    assert abs(found.mean() - float(wanted.mean())) < 5 * error


def test_subsamples_of_rows_are_unbiased(monkeypatch):
    objective, rows = network(50)
    whole = Monitor(objective, rows, batch_size=8, seed=1).elbos(400)
    monkeypatch.setattr(module, "ROWS", 10)
    some = Monitor(objective, rows, batch_size=8, seed=1).elbos(1000)
    error = math.hypot(some.std() / 1000**0.5, whole.std() / 20)
    assert some.std() > 2 * whole.std()
    assert abs(some.mean() - whole.mean()) < 5 * error


def test_more_steps_are_worth_more_estimates():
    objective, rows = network()
    monitor = Monitor(objective, rows, batch_size=10, seed=1)
    assert monitor.number(1) == module.MIN_VALUES
    assert monitor.number(2000) == pytest.approx(module.COST * 2000 / 2)  # two steps' time each
    assert monitor.number(10**9) == module.MAX_VALUES


def test_changes_are_root_mean_squares_in_sds():
    now = Outputs(np.array([1.0, 5.0, 9.0]), np.array([1.0, 2.0, 0.0]))
    before = Outputs(np.array([2.0, 9.0, 0.0]), np.array([1.0, 2.0, 0.0]))
    assert change_in_sds(now, before) == pytest.approx(math.sqrt((1**2 + 2**2) / 2))
    assert change_in_sds(now, before, np.full(3, 2.0)) == pytest.approx(math.sqrt(97 / 12 + 1 / 12))
    point = Outputs(now.mean, np.zeros(3))
    assert math.isnan(change_in_sds(point, point))


def test_outputs_of_a_network_are_those_of_its_draws():
    objective, rows = network()
    found = Monitor(objective, rows, batch_size=8, seed=1).outputs()
    assert found is not None
    assert found.mean.shape == (30,)
    with torch.no_grad():
        point = objective.model.net(rows[0]).flatten().numpy()
    assert np.abs(found.mean - point).max() < 5 * found.sd.max()


def subsampled(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=5) as index:
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])


def test_rows_and_unknowns_of_a_model_without_a_network():
    model = BoundModel(subsampled, (torch.ones(40),), {})
    guide = MeanField(model, init_scale=0.1)
    objective = Objective(model, guide, validate=False)
    assert observed_elements(objective) == 40
    monitor = Monitor(objective, (), batch_size=128, seed=0)
    assert monitor.num_data == 40
    found = monitor.outputs()
    assert found is not None
    assert found.sd == pytest.approx(0.1, rel=0.5)
