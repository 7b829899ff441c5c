"""A truth meets the published criteria, or is refused with numbers."""

import dataclasses

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import zoo
from zoo.errors import ConfigError, StoreError, TruthError
from zoo.infer.nuts.budget import Budget, BudgetError
from zoo.infer.nuts.sampler import Draws, sample_nuts
from zoo.truth import reference as ground_truth
from zoo.truth.reference import Truth, judge, truth

Y = torch.tensor([1.0, -0.5, 0.2, 2.0], dtype=torch.float64)
FAST = {"num_chains": 2, "num_warmup": 300, "num_samples": 1000, "executor": "serial"}


def location(y):
    z = pyro.sample("z", dist.Normal(0.0, 2.0))
    with pyro.plate("obs", len(y)):
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def funnel():
    """Neal's funnel with nine arms, centred."""
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    pyro.sample("x", dist.Normal(0.0, (v / 2).exp()).expand([9]).to_event(1))


def made_up(values, **stats):
    """Draws with the statistics of a sampler that had no difficulty."""
    rng = np.random.default_rng(1)
    good = {"diverging": np.zeros((4, 500), dtype=bool), "energy": rng.normal(size=(4, 500))}
    return Draws(values, good | stats, 0.0, 0.0, 0.0, {})


def independent(*shape):
    return np.random.default_rng(0).normal(size=(4, 500, *shape))


@pytest.fixture
def counted(monkeypatch):
    """Count how often the sampler is run."""
    calls = []

    def sample(*args, **kwargs):
        calls.append(kwargs)
        return sample_nuts(*args, **kwargs)

    monkeypatch.setattr(ground_truth, "sample_nuts", sample)
    return calls


def test_accepted_truth_has_its_exact_mean_within_monte_carlo_error(tmp_path):
    found = truth(location, (Y,), cache=tmp_path, **FAST)
    precision = 1 / 4 + 4
    exact = {"mean": float(Y.sum()) / precision, "sd": precision**-0.5}
    for statistic, value in exact.items():
        row = found.summary["z"]
        error = float(row.sel(statistic=f"mcse_{statistic}"))
        assert abs(float(row.sel(statistic=statistic)) - value) < 5 * error
    assert found.accepted
    assert found.reasons == ()


def test_independent_draws_are_accepted():
    values = {"a": independent(), "b": independent(2)}
    assert judge(made_up(values)).reasons == ()


def test_constant_elements_are_not_judged():
    values = independent(2)
    values[..., 0] = 1.0
    assert judge(made_up({"corr": values})).accepted


def test_chains_that_disagree_are_named_with_their_rhat():
    values = independent(3)
    values[0, :, 2] += 1.0
    reasons = judge(made_up({"w": values})).reasons
    assert any(reason.startswith("rhat of w[2] 1.") for reason in reasons)
    assert not any("w[0]" in reason or "w[1]" in reason for reason in reasons)


def test_few_effective_draws_are_named():
    walk = np.cumsum(independent(), axis=1)
    reasons = judge(made_up({"slow": walk})).reasons
    assert any(
        reason.startswith("ess_bulk of slow") and "limit 400" in reason for reason in reasons
    )
    assert any(reason.startswith("ess_tail of slow") for reason in reasons)


def test_divergences_and_low_energy_fraction_are_named():
    diverging = np.zeros((4, 500), dtype=bool)
    diverging[1, 3] = True
    energy = np.cumsum(independent(), axis=1)
    reasons = judge(made_up({"a": independent()}, diverging=diverging, energy=energy)).reasons
    assert reasons[0] == "1 of 2000 transitions diverged (limit 0)"
    assert reasons[1].startswith("E-BFMI is 0.0")


def test_energies_that_an_engine_does_not_report_are_not_judged():
    assert judge(made_up({"a": independent()}, energy=np.full((4, 500), np.nan))).accepted


def test_only_reported_quantities_are_judged():
    walk = np.cumsum(independent(), axis=1)
    draws = made_up({"slow": walk, "a": independent()})
    assert not judge(draws).accepted
    assert judge(draws, lambda values: {"squared": values["a"] ** 2}).accepted


@pytest.mark.slow
def test_centred_funnel_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(ground_truth, "CAREFUL_TARGETS", ())
    options = FAST | {"num_samples": 500, "max_tree_depth": 7}
    # Whether a chain diverges or gets stuck in the neck depends on the rounding of the processor.
    reason = r"\d+ of 1000 transitions diverged \(limit 0\)|E-BFMI is 0\.\d+"
    with pytest.raises(TruthError, match=reason):
        truth(funnel, cache=False, reparameterise=False, **options)


def test_divergences_are_met_with_more_care_before_they_are_refused(monkeypatch):
    tried = []

    def sample(*args, target_accept, num_warmup, num_samples, **kwargs):
        tried.append((target_accept, num_warmup, num_samples))
        return made_up({"z": independent()}, diverging=np.ones((4, 500), dtype=bool))

    monkeypatch.setattr(ground_truth, "sample_nuts", sample)
    with pytest.raises(TruthError, match="2000 of 2000 transitions diverged"):
        truth(location, (Y,), cache=False)
    assert tried == [(0.8, 500, 500), (0.95, 1000, 500), (0.99, 2000, 500)]


def test_draws_that_are_not_accepted_can_be_had(monkeypatch):
    walk = made_up({"z": np.cumsum(independent(), axis=1)})
    monkeypatch.setattr(ground_truth, "sample_nuts", lambda *args, **kwargs: walk)
    found = truth(location, (Y,), cache=False, accept=False)
    assert not found.accepted
    assert found.draws is walk


def test_more_draws_are_taken_only_so_many_times(monkeypatch):
    walk, tried = made_up({"z": np.cumsum(independent(), axis=1)}), []

    def sample(*args, num_samples, **kwargs):
        tried.append(num_samples)
        return walk

    monkeypatch.setattr(ground_truth, "sample_nuts", sample)
    truth(location, (Y,), cache=False, accept=False)
    growth = ground_truth.MAX_GROWTH
    assert tried == [500 * growth**k for k in range(ground_truth.MAX_LONGER + 1)]


def two_modes(weight):
    z = pyro.sample("z", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    left = dist.Normal(-5.0, 0.5).log_prob(z).sum() + torch.log(1 - weight)
    right = dist.Normal(5.0, 0.5).log_prob(z).sum() + torch.log(weight)
    pyro.factor("sides", torch.logaddexp(left, right))


@pytest.mark.parametrize("weight", [0.5, 0.9])
def test_modes_between_which_no_chain_moves_are_named_and_weighed(weight, counted):
    given = torch.tensor(weight, dtype=torch.float64)
    found = truth(two_modes, (given,), cache=False, accept=False, executor="serial")
    assert found.status == "refused"
    assert len(counted) == 1  # more draws would not help
    assert found.reasons[0].startswith("2 modes between which no chain moved: z[")
    assert sorted(chain for mode in found.modes for chain in mode.chains) == list(range(8))
    heavier = max(weight, 1 - weight)
    # Bridge sampling in two dimensions with 4 x 250 draws: errors are below one per cent.
    assert found.modes[0].weight == pytest.approx(heavier, abs=0.02)


def test_modes_that_the_quantities_do_not_tell_apart_are_accepted():
    weight = torch.tensor(0.5, dtype=torch.float64)
    found = truth(
        two_modes,
        (weight,),
        cache=False,
        executor="serial",
        quantities=lambda values: {"size": np.abs(values["z"])},
    )
    assert found.accepted
    assert float(found.summary["size"].sel(statistic="mean")[0]) == pytest.approx(5.0, abs=0.05)


def test_mode_without_mass_is_left_out_and_that_is_recorded():
    weight = torch.tensor(1 - 1e-4, dtype=torch.float64)
    found = truth(two_modes, (weight,), cache=False, executor="serial")
    assert found.accepted
    assert found.draws.values["z"].min() > 0
    assert found.recipe["num_chains"] == 4
    assert "weight 0.0001" in found.recipe["left_out"]


def test_budget_that_is_spent_is_said_with_what_was_reached(monkeypatch):
    seconds = iter([0.0, 100.0])

    def sample(*args, max_seconds, **kwargs):
        monkeypatch.setattr(Budget, "spent", next(seconds) + 50.0)
        return made_up({"z": np.cumsum(independent(), axis=1)})

    monkeypatch.setattr(ground_truth, "sample_nuts", sample)
    monkeypatch.setattr(Budget, "spent", 0.0)
    found = truth(location, (Y,), cache=False, accept=False)
    assert found.status == "out of budget"
    # The attempt took 50 s, and eight times as many draws are needed.
    note = "out of budget: 50 of 120 s gave 4 chains of 500 draws, and about 400 s more"
    assert found.reasons[0].startswith(note)


def test_chains_that_were_stopped_are_out_of_budget_unless_they_suffice(monkeypatch):
    enough = dataclasses.replace(made_up({"z": independent()}), is_complete=False)
    monkeypatch.setattr(ground_truth, "sample_nuts", lambda *args, **kwargs: enough)
    assert truth(location, (Y,), cache=False, accept=False).accepted
    walk = np.cumsum(independent(), axis=1)
    too_few = dataclasses.replace(made_up({"z": walk}), is_complete=False)
    monkeypatch.setattr(ground_truth, "sample_nuts", lambda *args, **kwargs: too_few)
    assert truth(location, (Y,), cache=False, accept=False).status == "out of budget"
    with pytest.raises(BudgetError, match="out of budget"):
        truth(location, (Y,), cache=False)


def test_whitened_funnel_is_accepted_and_exact():
    found = truth(funnel, cache=False, **FAST)
    row = found.summary["v"]
    assert abs(float(row.sel(statistic="mean"))) < 5 * float(row.sel(statistic="mcse_mean"))
    assert abs(float(row.sel(statistic="sd")) - 3) < 5 * float(row.sel(statistic="mcse_sd"))


def test_too_few_draws_are_made_more():
    found = truth(location, (Y,), cache=False, **(FAST | {"num_samples": 50}))
    assert found.accepted
    assert found.recipe["num_samples"] > 50
    assert found.recipe["target_accept"] == 0.8


def test_cache_is_used_again_for_the_same_question_only(tmp_path, counted):
    first = truth(location, (Y,), cache=tmp_path, **FAST)
    again = truth(lambda y: location(y), (Y.clone(),), cache=tmp_path, **FAST)
    assert len(counted) == 1
    np.testing.assert_array_equal(first.draws.values["z"], again.draws.values["z"])
    assert again.recipe == first.recipe
    truth(location, (Y + 1e-9,), cache=tmp_path, **FAST)
    truth(location, (Y,), cache=tmp_path, seed=1, **FAST)
    assert len(counted) == 3


@pytest.mark.parametrize("damage", ["truncated", "other"])
def test_damaged_cache_is_made_again(tmp_path, counted, damage):
    first = truth(location, (Y,), cache=tmp_path, **FAST)
    (path,) = (tmp_path / "truth").glob("*.nc")
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        other = truth(location, (Y + 1,), cache=tmp_path / "other", **FAST)
        other.save(path)
    counted.clear()
    again = truth(location, (Y,), cache=tmp_path, **FAST)
    assert len(counted) == 1
    np.testing.assert_array_equal(first.draws.values["z"], again.draws.values["z"])
    assert Truth.load(path).key == first.key


def test_cache_directory_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    truth(location, (Y,), **FAST)
    assert len(list((tmp_path / "truth").glob("*.nc"))) == 1


def test_saved_truth_is_read_back_and_is_a_tree_of_arviz(tmp_path):
    found = truth(location, (Y,), cache=False, **FAST)
    found.save(tmp_path / "truth.nc")
    loaded = Truth.load(tmp_path / "truth.nc")
    np.testing.assert_array_equal(loaded.draws.values["z"], found.draws.values["z"])
    np.testing.assert_array_equal(loaded.draws.stats["energy"], found.draws.stats["energy"])
    assert loaded.summary.equals(found.summary)
    tree = loaded.tree()
    assert tree["posterior"]["z"].dims == ("chain", "draw")
    assert tree["sample_stats"]["diverging"].dtype == bool
    (tmp_path / "other.nc").write_text("no")
    with pytest.raises(StoreError, match=r"other\.nc"):
        Truth.load(tmp_path / "other.nc")


def test_one_chain_is_refused():
    with pytest.raises(ConfigError, match=r"at least 2 chains.*num_chains=1"):
        truth(location, (Y,), num_chains=1)


def test_truth_is_public():
    assert zoo.truth is truth  # and not a module of that name
    assert zoo.Truth is Truth
