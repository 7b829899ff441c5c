"""Simulated data come from prior and likelihood, and ranks count draws of their fits."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from zoo.data import from_arrays
from zoo.errors import ConfigError, ZooError
from zoo.fit.config import make_config
from zoo.infer.nuts.sampler import Draws
from zoo.infer.svi.loop import DivergedError
from zoo.truth import calibration, simulated_fits
from zoo.truth import quantities as quantity_module
from zoo.truth.calibration import calibrate, rank_of
from zoo.truth.quantities import quantities
from zoo.truth.simulated_fits import SMALL_PROBLEM, NetworkSimulator, small_dataset
from zoo.truth.simulated_models import Conditioned, ModelSimulator

QUICK = {"num_simulations": 10, "num_steps": 2, "executor": "serial", "progress_bar": False}
KNOWN = "gaussian(noise=0.5)"


def inputs(rows=12, features=2, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, features))


def simulator(dataset=None, **settings):
    config = make_config(method="mean_field", **(SMALL_PROBLEM | settings))
    return NetworkSimulator(config, dataset=dataset or small_dataset())


def by_name(result):
    return {finding.check: finding for finding in result.findings}


# ------------------------------------------------------------------ ranks


@pytest.mark.parametrize(("lowest", "rank"), [(1e6, 0), (-1e6, 99), (-148.5, 50)])
def test_a_rank_is_the_number_of_thinned_draws_below_the_truth(monkeypatch, lowest, rank):
    def sample(model, args, kwargs, *, num_chains, num_samples, **options):
        ramp = lowest + np.arange(num_samples, dtype=float)
        values = {"0.weight": np.zeros((1, len(ramp), 1, 3)), "0.bias": np.zeros((1, len(ramp), 1))}
        for value in values.values():
            value += ramp.reshape(1, -1, *[1] * (value.ndim - 2))
        return Draws(values, {}, 0.0, 0.0, 0.0, {})

    monkeypatch.setattr(simulated_fits, "sample_nuts", sample)
    # Every third draw is used: the last ones beside zero are -1.5 and 1.5.
    result = calibrate("mean_field", engine="nuts", priors={"*": "Normal(0, 0.1)"}, **QUICK)
    names = [*(f"0.weight[{k}]" for k in range(3)), "0.bias[0]"]
    assert {value for name in names for value in result.ranks[name]} == {rank}


def test_draws_equal_to_the_true_value_are_split_at_random():
    rng = np.random.default_rng(0)
    draws = torch.tensor([-1.0, 0.0, 0.0, 0.0, 2.0])
    found = [rank_of(torch.tensor(0.0), draws, rng) for _ in range(400)]
    assert set(found) == {1, 2, 3, 4}
    assert np.mean(found) == pytest.approx(2.5, abs=5 * np.sqrt(1.25 / 400))


def test_ranked_quantities_of_a_linear_model_and_of_a_network():
    result = calibrate("mean_field", **QUICK)
    weights = [*(f"0.weight[{i}]" for i in range(3)), "0.bias[0]"]
    outputs = [f"output[{row}]" for row in (0, 7, 14, 21, 29)]
    assert list(result.ranks) == [*weights, *outputs, "log_likelihood"]
    assert all(len(ranks) == 10 for ranks in result.ranks.values())
    network = calibrate("mean_field", net="mlp:3-4-1", **QUICK)
    assert list(network.ranks) == [*outputs, "log_likelihood"]  # weights are not identified


def test_the_noise_has_a_rank_if_it_has_a_prior():
    noisy = {"likelihood": "gaussian", "priors": {"noise": "HalfNormal(1)"}}
    result = calibrate("mean_field", net="mlp:3-4-1", **noisy, **QUICK)
    assert "noise" in result.ranks
    assert not result.points


def test_the_same_seed_gives_the_same_ranks():
    first, again = (calibrate("mean_field", seed=1, **QUICK).ranks for _ in range(2))
    other = calibrate("mean_field", seed=2, **QUICK).ranks
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


# ------------------------------------------------------------------ simulated data


def test_simulated_targets_have_the_covariance_of_prior_and_noise():
    prior = {"*weight": "Normal(0, 2)", "*bias": "Normal(1, 0.1)"}
    source = simulator(priors=prior)
    x = source.dataset.X_train
    y = np.stack([source.simulate(seed).data for seed in range(600)])
    covariance = 4 * x @ x.T + 0.1**2 + 0.5**2 * np.eye(len(x))
    # The largest of 465 relative errors of sample covariances; five standard errors.
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert np.abs((np.cov(y.T) - covariance) / scale).max() < 5 * np.sqrt(2 / 600)
    error = 5 * np.sqrt(np.diag(covariance) / 600)
    assert np.all(np.abs(y.mean(0) - 1) < error)


def test_noise_is_independent_of_the_weights():
    # Rows are so few that a common seed would give noise and weights the same numbers.
    source = simulator(from_arrays(inputs(3), np.arange(3.0), task="regression"))
    drawn = [source.simulate(seed) for seed in range(300)]
    weights = np.stack([s.values["0.weight"].numpy().ravel() for s in drawn])
    noise = np.stack([s.data - s.outputs.numpy()[:, 0] for s in drawn])
    correlations = np.corrcoef(weights.T, noise.T)[:2, 2:]
    assert np.abs(correlations).max() < 5 / np.sqrt(300)


def test_true_outputs_and_weights_belong_to_the_targets():
    source = simulator(likelihood="gaussian(noise=1e-6)")
    found = source.simulate(3)
    f = source.dataset.X_train @ found.values["0.weight"].numpy().T + found.values["0.bias"].numpy()
    assert found.outputs.numpy() == pytest.approx(f)
    assert found.data == pytest.approx(f[:, 0], abs=1e-4)


CASES = {
    "bernoulli": ("classification", np.arange(12) % 2, "output[0]", (0, 1)),
    "categorical": ("classification", np.arange(12) % 3, "output[0][1]", (0, 2)),
    "poisson": ("counts", np.arange(12), "output[0]", (0, np.inf)),
    "student_t(df=4, noise=0.3)": ("regression", np.linspace(-1, 1, 12), "output[0]", None),
    "gaussian(noise=heteroscedastic)": (
        "regression",
        np.linspace(-1, 1, 12),
        "output[0][1]",
        None,
    ),
}


@pytest.mark.parametrize("likelihood", CASES)
def test_every_likelihood_is_simulated_in_the_type_of_its_targets(likelihood):
    task, y, output, bounds = CASES[likelihood]
    data = from_arrays(inputs(), y, task=task)
    given = {"likelihood": likelihood, "net": "linear"}
    source = simulator(data, **given)
    simulated = source.simulate(0).data
    assert simulated.dtype == data.y_train.dtype
    if bounds is not None:
        assert bounds[0] <= simulated.min() <= simulated.max() <= bounds[1]
    result = calibrate("mean_field", data=data, **given, **QUICK)
    assert output in result.ranks
    assert "0.weight[0]" in result.ranks
    if likelihood == "categorical":  # differences of three classes, two inputs and a bias
        assert [n for n in result.ranks if n.startswith("0.")] == [
            *(f"0.weight[{i}]" for i in range(4)),
            "0.bias[0]",
            "0.bias[1]",
        ]


def test_logits_are_ranked_as_differences_to_the_first_class():
    data = from_arrays(inputs(), np.arange(12) % 3, task="classification")
    source = simulator(data, likelihood="categorical")
    simulated = source.simulate(0)
    f = torch.randn(5, 12, 3, dtype=torch.float64)
    weights = {name: torch.stack([value] * 5) for name, value in simulated.values.items()}
    y = torch.as_tensor(simulated.data)
    found = quantities(source.model, simulated, weights, f, y)
    shifted = quantities(source.model, simulated, weights, f + 7, y)
    for name, (true, draws) in found.items():
        assert torch.allclose(true, shifted[name][0]), name
        assert torch.allclose(draws, shifted[name][1]), name
    assert torch.allclose(found["output[0][1]"][1], f[:, 0, 2] - f[:, 0, 0])


def test_parameters_without_a_prior_have_the_values_of_a_fit_to_the_data():
    rng = np.random.default_rng(0)
    x = inputs(200)
    data = from_arrays(x, x[:, 0] + 0.2 * rng.standard_normal(200))
    trained = {"likelihood": "gaussian", "num_steps": 300, "lr": 0.05}
    source = simulator(data, **trained)
    assert source.points == ["likelihood.log_noise"]
    noise = float(source.model.likelihood.log_noise.detach().exp())
    assert noise == pytest.approx(0.2, rel=0.3)
    residuals = [(s.data - s.outputs.numpy()[:, 0]).std() for s in map(source.simulate, range(20))]
    # The relative standard error of an sd from 20 times 200 residuals is 1.1 %.
    assert np.mean(residuals) == pytest.approx(noise, rel=0.06)
    result = calibrate("mean_field", data=data, net="linear", **QUICK)
    assert result.points == ("likelihood.log_noise",)
    assert "noise" not in result.ranks
    assert "has no prior" in by_name(result)["sbc.points"].message


def test_many_parameters_are_ranked_in_part(monkeypatch):
    for module in (calibration, quantity_module):
        monkeypatch.setattr(module, "MAX_PARAMETERS", 2)
    result = calibrate("mean_field", **QUICK)
    assert [name for name in result.ranks if name.startswith("0.")] == [
        "0.weight[0]",
        "0.weight[2]",
    ]
    assert "At most 2 of 4" in by_name(result)["sbc.unranked"].message


# ------------------------------------------------------------------ what goes wrong


def test_data_sets_that_are_too_large_are_discarded_and_counted():
    given = {"priors": {"*": "Normal(0, 20)"}, "max_scale": 10.0}
    result = calibrate("mean_field", **given, **QUICK)
    assert result.num_discarded > 0
    total = result.num_discarded + 10
    finding = by_name(result)["sbc.discarded"]
    assert finding.level == "info"
    assert f"{result.num_discarded} of {total}" in finding.message
    assert finding.value == pytest.approx(result.num_discarded / total)
    with pytest.raises(ConfigError, match=r"200 data sets in a row .* narrower prior"):
        calibrate("mean_field", priors={"*": "Normal(0, 1e12)"}, **QUICK)
    assert "sbc.discarded" not in by_name(calibrate("mean_field", **QUICK))


def test_a_fit_that_diverges_is_a_failure_and_not_missing(monkeypatch):
    calls = iter(range(100))
    train = simulated_fits.train

    def sometimes(prepared, **options):
        if next(calls) in (3, 4):
            raise DivergedError("the loss is not finite")
        return train(prepared, **options)

    monkeypatch.setattr(simulated_fits, "train", sometimes)
    result = calibrate("mean_field", **QUICK)
    assert result.num_failed == 2
    assert len(result.ranks["log_likelihood"]) == 8
    assert by_name(result)["sbc.failed_fits"].level == "fail"


def test_all_fits_may_fail(monkeypatch):
    def never(prepared, **options):
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(simulated_fits, "train", never)
    result = calibrate("mean_field", **QUICK)
    assert result.num_failed == 10
    assert [finding.level for finding in result.findings] == ["fail"]


def test_draws_that_are_not_finite_are_a_failure():
    def fit(simulated, seed):
        return {"a": (torch.tensor(0.0), torch.tensor([0.0, torch.nan]))}

    assert calibration._ranks(fit, None, 0) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "sparse_vd"}, "is improper"),
        ({"method": "stochastic_batch_norm"}, "not define a posterior|batch norm"),
        ({"method": "mean_field", "engine": "gibbs"}, "unknown engine"),
        ({"method": "mean_field", "max_scale": 0}, "max_scale must be positive"),
        ({"method": "mean_field", "args": (1,)}, "are for Pyro models"),
        ({"method": "mean_field", "X": np.ones((3, 1))}, "either X and y, or data="),
        ({"method": "mean_field", "nope": 1}, "unknown configuration key"),
        ({"method": "mean_feild"}, "mean_field"),
        ({"method": "mean_field", "executor": "nope"}, "unknown executor"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(given, message):
    with pytest.raises(ZooError, match=message):
        calibrate(**(QUICK | given))


def test_objects_of_a_script_run_in_this_process():
    class Local(nn.Module):
        def forward(self, x):
            return x

    task = Local().forward
    assert calibration._choose_executor(None, task, torch.device("cpu")) == "serial"
    with pytest.raises(ConfigError, match="other processes do not import"):
        calibration._choose_executor("processes", task, torch.device("cpu"))
    assert calibration._choose_executor(None, print, torch.device("cpu")) is None


def test_networks_and_guides_may_be_objects():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    before = net[0].weight.detach().clone()
    auto = pyro.infer.autoguide.AutoDiagonalNormal
    result = calibrate("mean_field", net=net, guide=auto, **QUICK)
    assert len(result.ranks["output[0]"]) == 10
    assert torch.equal(net[0].weight, before)


# ------------------------------------------------------------------ Pyro models


def regression(x, y):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    effects = pyro.sample("effects", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    location = pyro.deterministic("location", x * slope + effects.sum())
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(location, 0.5), obs=y)


def arguments(rows=8):
    return torch.linspace(-1, 1, rows), torch.linspace(-1, 1, rows)


def test_observed_sites_of_a_pyro_model_are_simulated():
    given = {"args": arguments(), "guide": "full_rank", **QUICK}
    result = calibrate(regression, **given)
    assert list(result.ranks) == ["slope", "effects[0]", "effects[1]", "log_likelihood"]
    again = calibrate(regression, **given)
    assert all(np.array_equal(result.ranks[name], again.ranks[name]) for name in result.ranks)


def test_a_pyro_model_is_conditioned_on_the_simulated_data():
    x, y = arguments()
    source = ModelSimulator(
        regression,
        guide=None,
        args=(x, y),
        kwargs=None,
        engine="svi",
        settings={"num_steps": 2},
        progress_bar=None,
    )
    simulated = source.simulate(0)
    model = Conditioned(regression, simulated.data)
    trace = pyro.poutine.trace(model).get_trace(x, y)
    assert torch.equal(trace.nodes["y"]["value"], simulated.data["y"])
    assert trace.nodes["y"]["is_observed"]
    assert not torch.equal(simulated.data["y"], y)
    location = x * simulated.values["slope"] + simulated.values["effects"].sum()
    assert (simulated.data["y"] - location).abs().max() < 5 * 0.5


def factor(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    pyro.factor("penalty", -mu.abs())
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def subsampled(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=2) as rows:
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


def parameterised(y):
    scale = pyro.param("scale", torch.tensor(1.0))
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, scale.exp()), obs=y)


def unconditional(y):
    pyro.sample("mu", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (factor, "has a factor, 'penalty'"),
        (subsampled, "'rows' is subsampled"),
        (parameterised, "parameter without a prior"),
        (unconditional, "observes nothing"),
    ],
)
def test_pyro_models_that_cannot_be_simulated_are_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        calibrate(model, args=(torch.ones(4),), **QUICK)
    with pytest.raises(ConfigError, match="as args= and kwargs="):
        calibrate(model, np.ones((3, 1)), np.ones(3), **QUICK)
