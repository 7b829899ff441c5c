"""NUTS finds posteriors that are known, by either engine and on every executor."""

import importlib.util
import itertools
import json
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

from zoo.errors import ConfigError, ZooError
from zoo.infer.nuts import chain, sampler
from zoo.infer.nuts.budget import Budget, BudgetError
from zoo.infer.nuts.sampler import sample_nuts
from zoo.infer.tasks.executor import SerialExecutor, make_executor
from zoo.truth.reference import judge

X = torch.tensor([[1.0, 0.2], [0.3, -1.0], [-0.5, 0.4], [1.5, 1.2]], dtype=torch.float64)
Y = torch.tensor([1.0, -0.5, 0.2, 2.0], dtype=torch.float64)
NOISE = 0.5


def linear(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("obs", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def run(model, args, **options):
    settings = {"num_chains": 2, "num_warmup": 300, "num_samples": 500, "executor": "serial"}
    return sample_nuts(model, args, **(settings | options))


@pytest.fixture(scope="module")
def linear_draws():
    return run(linear, (X, Y))


def within_five_errors(truth, name, mean, sd):
    row = truth.summary[name]
    for statistic, exact in (("mean", mean), ("sd", sd)):
        error = row.sel(statistic=f"mcse_{statistic}").values
        assert (np.abs(row.sel(statistic=statistic).values - exact) < 5 * error).all()


def exact_linear():
    covariance = torch.linalg.inv(torch.eye(2, dtype=torch.float64) + X.T @ X / NOISE**2)
    mean = covariance @ X.T @ Y / NOISE**2
    return mean.numpy(), covariance.diagonal().sqrt().numpy()


def test_gaussian_posterior_is_recovered(linear_draws):
    within_five_errors(judge(linear_draws), "w", *exact_linear())


def test_engine_of_pyro_finds_the_same():
    draws = run(linear, (X, Y), engine="pyro")
    within_five_errors(judge(draws), "w", *exact_linear())
    assert draws.stats["n_steps"].min() >= 1
    assert np.isnan(draws.stats["energy"]).all()


def test_statistics_have_the_names_of_arviz(linear_draws):
    names = {"energy", "tree_depth", "n_steps", "diverging", "step_size", "acceptance_rate", "lp"}
    assert set(linear_draws.stats) == names
    assert all(value.shape == (2, 500) for value in linear_draws.stats.values())
    assert linear_draws.num_divergences == 0
    draw = torch.from_numpy(linear_draws.values["w"][1, 7])
    model = pyro.poutine.condition(linear, data={"w": draw})
    joint = pyro.poutine.trace(model).get_trace(X, Y).log_prob_sum()
    assert linear_draws.stats["lp"][1, 7] == pytest.approx(float(joint), rel=1e-6)


def test_seed_decides_the_draws(linear_draws):
    again = run(linear, (X, Y))
    np.testing.assert_array_equal(again.values["w"], linear_draws.values["w"])
    other = run(linear, (X, Y), seed=1)
    assert not np.array_equal(other.values["w"], linear_draws.values["w"])
    assert not np.array_equal(other.values["w"][0], other.values["w"][1])


def ridge(width):
    """Ten unknowns, of which the sum is known to be small."""
    z = pyro.sample("z", dist.Normal(torch.zeros(10), 1.0).to_event(1))
    pyro.factor("sum", -0.5 * (z.sum() / width) ** 2)


@pytest.mark.parametrize(("width", "low_rank"), [(0.01, True), (100.0, False)])
def test_mass_matrix_learns_correlations_where_that_saves_steps(width, low_rank):
    width = torch.tensor(width, dtype=torch.float64)
    assert run(ridge, (width,)).recipe["low_rank"] is low_rank
    assert run(ridge, (width,), low_rank=not low_rank).recipe["low_rank"] is not low_rank


SCRIPT = """
import json, sys
sys.path[:0] = {path!r}
import test_sampler as tests
for executor in ("serial", "processes:2"):
    draws = tests.run(tests.linear, (tests.X, tests.Y), executor=executor)
    print(json.dumps([draws.values["w"].tolist(), draws.stats["energy"].tolist()]))
"""


@pytest.mark.slow
def test_processes_give_the_draws_of_the_serial_executor(linear_draws):
    """Also from a script that does not guard its main part."""
    folder = Path(__file__).parent
    script = SCRIPT.format(path=[str(folder), str(folder.parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=280
    )
    serial, parallel = (json.loads(line) for line in done.stdout.splitlines())
    assert serial == parallel
    assert serial[0] == linear_draws.values["w"].tolist()


def school_effects(y, sd):
    """Eight schools: the centred form, which the sampler has to rewrite."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    theta = pyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    pyro.sample("y", dist.Normal(theta, sd).to_event(1), obs=y)


def standardised_effects(y, sd):
    """The same, non-centred: the right form where the data say little, and here they do."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    theta = pyro.sample("theta", dist.Normal(torch.zeros(8), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(mu + tau * theta, sd).to_event(1), obs=y)


@pytest.mark.parametrize("model", [school_effects, standardised_effects])
def test_hierarchical_model_is_whitened_and_has_the_right_posterior(model):
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
    sd = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
    draws = run(model, (y, sd), num_samples=1000, target_accept=0.9)
    assert draws.recipe["reparameterised"] == ["theta"]
    assert draws.num_divergences == 0
    # theta and mu integrate out: y_i ~ N(0, sd_i^2 + tau^2 + 25), a one-dimensional integral.
    grid = np.exp(np.linspace(-12, 9, 20001))
    variance = (sd.numpy() ** 2)[:, None] + grid**2
    precision = (1 / variance).sum(0) + 1 / 25
    centre = (y.numpy()[:, None] / variance).sum(0) / precision
    log_density = -0.5 * np.log(variance).sum(0) - 0.5 * np.log(precision)
    log_density += 0.5 * precision * centre**2 - 0.5 * (y.numpy()[:, None] ** 2 / variance).sum(0)
    log_density += np.log(grid) - np.log1p((grid / 5) ** 2)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = (weight * centre).sum()
    variance_mu = (weight * (1 / precision + centre**2)).sum() - mean**2
    within_five_errors(judge(draws), "mu", mean, np.sqrt(variance_mu))
    log_tau = judge(draws, lambda values: {"log_tau": np.log(values["tau"])})
    mean = (weight * np.log(grid)).sum()
    sd_log = np.sqrt((weight * np.log(grid) ** 2).sum() - mean**2)
    within_five_errors(log_tau, "log_tau", mean, sd_log)


def test_pilot_chains_are_part_of_the_warmup(monkeypatch):
    """By a clock that is 1000 seconds further on whenever it is read."""
    readings = itertools.count(0.0, 1000.0)
    clock = types.SimpleNamespace(
        process_time=lambda: next(readings), perf_counter=lambda: next(readings)
    )
    monkeypatch.setattr(sampler, "time", clock)
    for name, length in {"WARMUP": 20, "SAMPLES": 4, "ROWS": 4}.items():
        monkeypatch.setattr(sampler, f"PILOT_{name}", length)
    data = torch.ones(8, dtype=torch.float64)
    options = {"num_chains": 1, "num_warmup": 20, "num_samples": 4, "compiled": False}
    draws = run(school_effects, (data, data), low_rank=False, **options)
    assert draws.compile_seconds == 2000.0  # the pilot's density and the one with its hints
    assert 1000.0 <= draws.warmup_seconds < 2000.0
    assert draws.sampling_seconds < 1000.0


def test_trials_of_the_mass_matrix_are_part_of_the_warmup(monkeypatch):
    readings = itertools.count(0.0, 1000.0)
    clock = types.SimpleNamespace(process_time=lambda: next(readings))
    monkeypatch.setattr(sampler, "time", clock)
    sampling = sampler._Run(None, chain.Settings())
    sampling._choose_matrix(lambda settings: trial(10 if settings.low_rank else 20))
    assert sampling.pilot_seconds == 1000.0


def trial(steps):
    draws = np.random.default_rng(0).normal(size=(100, 2))
    return chain.Chain(draws, {"n_steps": np.full(100, steps)}, 0.0, 0.0, 400)


@pytest.mark.parametrize(
    ("steps", "low_rank"), [((10, 10), False), ((10, 12.4), False), ((10, 12.6), True)]
)
def test_correlations_must_save_a_fifth_of_the_steps(steps, low_rank):
    sampling = sampler._Run(None, chain.Settings())
    sampling._choose_matrix(lambda settings: trial(steps[not settings.low_rank]))
    assert sampling.settings.low_rank is low_rank


@pytest.mark.parametrize(
    ("num_chains", "num_warmup", "options", "worth"),
    [
        (4, 200, {}, True),  # 4 (200 + 200) draws are twice those of both trials
        (4, 199, {}, False),
        (2, 600, {}, True),
        (4, 200, {"engine": "pyro"}, False),
        (4, 200, {"backend": "replay"}, False),
    ],
)
def test_a_trial_needs_twice_as_many_draws_to_come(num_chains, num_warmup, options, worth):
    settings = chain.Settings(num_warmup, 200, engine=options.get("engine", "nutpie"))
    backend = options.get("backend", "inductor")
    sampling = sampler._Run(None, settings, num_chains, backend=backend)
    assert sampling._is_worth_a_trial() is worth


def test_efficiency_is_effective_draws_per_step():
    assert sampler._efficiency(trial(8)) == pytest.approx(sampler._efficiency(trial(2)) / 4)
    # Independent draws: about one effective draw per draw, and the mean is a geometric one.
    assert sampler._efficiency(trial(1)) == pytest.approx(1.0, abs=0.5)


def test_chains_start_around_the_given_values():
    init = {"w": np.array([50.0, -50.0])}
    draws = run(linear, (X, Y), init=init, num_warmup=20, num_samples=4, num_chains=1)
    assert draws.values["w"].shape == (1, 4, 2)
    with pytest.raises(ZooError, match="values are needed for the sites"):
        run(linear, (X, Y), init={"v": 1.0})


def test_what_was_asked_and_what_was_done_about_coordinates_is_recorded():
    data = torch.ones(8, dtype=torch.float64)
    options = {"num_chains": 1, "num_warmup": 20, "num_samples": 4, "compiled": False}
    for asked, done in ((True, ["theta"]), (False, [])):
        recipe = run(school_effects, (data, data), reparameterise=asked, **options).recipe
        assert recipe["reparameterise"] is asked
        assert recipe["reparameterised"] == done


def two_modes():
    z = pyro.sample("z", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    sides = [dist.Normal(side, 0.5).log_prob(z).sum() for side in (-5.0, 5.0)]
    pyro.factor("sides", torch.logaddexp(*sides))


def test_dispersed_chains_start_in_both_modes():
    options = {"num_chains": 4, "num_warmup": 20, "num_samples": 4, "compiled": False}
    draws = run(two_modes, (), dispersed=True, **options)
    assert sorted(np.sign(draws.values["z"][:, 0, 0])) == [-1, -1, 1, 1]
    assert draws.recipe["path_groups"] == 2


def stopped(length):
    draws = np.random.default_rng(0).normal(size=(length, 2))
    stats = {"n_steps": np.ones(length), "lp": np.zeros(length)}
    return chain.Chain(draws, stats, 0.0, 0.0, 100 + length)


def test_chains_that_were_stopped_are_cut_to_the_shortest():
    sampling = sampler._Run(None, chain.Settings(num_warmup=100, num_samples=100))
    chains = sampling._cut([stopped(100), stopped(7)])
    assert [len(one.draws) for one in chains] == [7, 7]
    assert [len(one.stats["lp"]) for one in chains] == [7, 7]


def test_error_of_a_spent_budget_says_how_far_chains_came_and_what_is_needed(monkeypatch):
    budget = Budget(60.0)
    monkeypatch.setattr(Budget, "spent", 60.0)
    settings = chain.Settings(num_warmup=100, num_samples=106)
    sampling = sampler._Run(None, settings, budget=budget)
    said = "after 60 of 60 s the slowest of 2 chains has 103 of 206 draws.*About 120 s would be"
    with pytest.raises(BudgetError, match=said):
        sampling._cut([stopped(106), stopped(3)])
    with pytest.raises(BudgetError, match="compiling took 60 of 60 s, and no chain was run"):
        budget.require("compiling")


def test_density_that_is_nowhere_finite_is_refused():
    def impossible():
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.factor("never", z * float("nan"))

    with pytest.raises(ZooError, match="not finite at any of 100 initial points"):
        run(impossible, ())


def test_missing_nutpie_gives_one_warning_and_the_other_engine(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="nutpie is not installed"):
        draws = run(linear, (X, Y), num_warmup=20, num_samples=4)
    assert draws.recipe["engine"] == "pyro"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seconds": 0.0}, "max_seconds must be positive. Got 0.0"),
        ({"num_chains": 0}, "num_chains must be at least 1. Got 0"),
        ({"num_samples": 3}, "num_samples must be at least 4. Got 3"),
        ({"num_warmup": 19}, "num_warmup must be at least 20. Got 19"),
        ({"max_tree_depth": 0}, "max_tree_depth must be at least 1. Got 0"),
        ({"target_accept": 0.0}, "target_accept must be between 0 and 1.*Got 0.0"),
        ({"target_accept": 1.0}, "target_accept must be between 0 and 1.*Got 1.0"),
        ({"engine": "stan"}, "unknown engine 'stan'. Accepted: nutpie, pyro"),
        ({"executor": "threads"}, "unknown executor 'threads'. Accepted: serial"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        run(linear, (X, Y), **options)


def test_executors_by_name():
    assert isinstance(make_executor("serial", 4), SerialExecutor)
    assert make_executor(None, 1).submit(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        make_executor("serial", 1).submit(divmod, 7, 0).result()
    with pytest.raises(ConfigError, match="processes:N with N at least 1"):
        make_executor("processes:0", 1)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
def test_workers_hold_interrupts_back_from_their_first_moment(monkeypatch):
    # Without the initialiser, which would ignore them only after torch is imported.
    monkeypatch.setattr("zoo.infer.tasks.executor._start_worker", int)
    with make_executor("processes:1", 1) as pool:
        held = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, set()).result()
    assert signal.SIGINT in held
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_flat_prior_is_sampled():
    def model(y):
        mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        with pyro.plate("obs", len(y)):
            pyro.sample("y", dist.Normal(mu, NOISE), obs=y)

    draws = run(model, (Y,))
    within_five_errors(judge(draws), "mu", Y.mean().item(), NOISE / len(Y) ** 0.5)
