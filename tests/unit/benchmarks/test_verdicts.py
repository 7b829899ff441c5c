"""The benchmark of the verdict: its arithmetic, and the references that defend its labels."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
import xarray
from scipy import stats

import zoo
from benchmarks import verdicts
from benchmarks.verdict_kinds import kinds, measure, running, tables
from benchmarks.verdict_kinds.case import USES, Case, Kinds, with_wrong_divergence, without
from benchmarks.verdict_kinds.judge import judgement_of
from benchmarks.verdict_kinds.reference import Posterior, divergence, reference
from benchmarks.verdict_kinds.shared import logistic_problem
from zoo.diagnostics import Finding, Judgement
from zoo.infer.svi import loop
from zoo.infer.svi.objective import Objective, total_divergence

PARTS = running.PARTS


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# ---------------------------------------------------------------------- kinds


def test_there_are_enough_kinds_and_a_third_is_kept_out():
    by_part = {part: [kind.overall for kind in kinds(part).values()] for part in PARTS}
    everything = [label for labels in by_part.values() for label in labels]
    assert everything.count("good") >= 15
    assert everything.count("bad") >= 25
    assert len(by_part["kept"]) >= len(everything) / 3
    assert not set(kinds("tune")) & set(kinds("kept"))
    for part in PARTS:
        found = {use for kind in kinds(part).values() for use in kind.labels}
        assert found == set(USES)


@pytest.mark.parametrize("part", PARTS)
def test_cases_follow_from_their_seed(part):
    for kind in kinds(part).values():
        if kind.name.startswith("separable"):  # draws until its rows are separable
            continue
        first, again, other = (kind.case(seed).problem for seed in (3, 3, 4))
        if first is None:
            continue
        assert first.frame().equals(again.frame())
        assert not first.frame().equals(other.frame())


def test_overall_label_is_the_worst_but_for_comparing():
    found = Kinds()
    found.add("a", predict="good", compare="bad")(_kind("fine"))
    found.add("a", predict="good", parameters="unknown")(_kind("lost"))
    found.add("a", predict="good", parameters="unknown", intervals="bad")(_kind("wrong"))
    found.add("a", overall=False, predict="good")(_kind("partly"))
    labels = {name: kind.overall for name, kind in found.items()}
    assert labels == {"fine": "good", "lost": "unknown", "wrong": "bad", "partly": None}
    with pytest.raises(ValueError, match="labels are for predict"):
        found.add("a", speed="good")


def _kind(name):
    def make(rng):
        return Case("mean_field")

    make.__name__ = name
    return make


def test_groups_are_removed_from_a_tree_and_attributes_stay():
    tree = xarray.DataTree.from_dict(
        {name: xarray.Dataset({"x": 1.0}) for name in ("posterior", "held_out")}
    )
    tree.attrs["task"] = "regression"
    smaller = without("held_out")(tree)
    assert list(smaller.children) == ["posterior"]
    assert smaller.attrs == {"task": "regression"}


def test_wrong_divergence_enters_the_training_objective_alone():
    net = torch.nn.Linear(2, 1)
    model = zoo.create("mean_field", net, likelihood="gaussian(noise=1)", num_data=4)
    guide = model.guide(init_scale=0.1)
    x, y = torch.randn(4, 2), torch.randn(4)
    kl = total_divergence(model, guide)
    with with_wrong_divergence(Case("mean_field"), 50.0).around(), torch.no_grad():
        losses = []
        for kind in (loop.Objective, Objective):
            torch.manual_seed(0)
            losses.append(float(kind(model, guide)(x, y)))
    assert losses[0] - losses[1] == pytest.approx(49 * kl, rel=1e-4)
    assert loop.Objective is Objective


# ---------------------------------------------------------------------- references and measures


def test_reference_is_the_conjugate_posterior_given_its_noise(rng):
    X = rng.normal(size=(80, 2))
    y = X @ [1.0, -1.0] + 0.5 * rng.normal(size=80)
    right = reference(X, y, "gaussian")
    design = np.column_stack([X, np.ones(80)])
    # At the joint mode the noise is that of the residuals at the posterior mean.
    noise = float(np.mean((y - design @ right.mean) ** 2)) ** 0.5
    precision = design.T @ design / noise**2 + np.eye(3)
    np.testing.assert_allclose(right.covariance, np.linalg.inv(precision), rtol=1e-6)
    np.testing.assert_allclose(
        right.mean, np.linalg.solve(precision, design.T @ y / noise**2), rtol=1e-6
    )


def test_reference_of_counts_agrees_with_quadrature(rng):
    y = rng.poisson(3.0, size=200)
    right = reference(np.zeros((200, 1)), y, "poisson")
    grid = np.linspace(0.5, 1.6, 4001)
    log_p = stats.poisson.logpmf(y[:, None], np.exp(grid)).sum(0) + stats.norm.logpdf(grid)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = (p * grid).sum()
    sd = math.sqrt((p * (grid - mean) ** 2).sum())
    # The mode differs from the mean by a skewness of 1 / sqrt(600) sds; the unused weight has its
    # prior.
    assert right.mean[1] == pytest.approx(mean, abs=0.05 * sd)
    assert right.sd == pytest.approx([1.0, sd], rel=0.01)


def test_divergence_of_gaussians_is_the_closed_form():
    right = Posterior(np.array([0.0]), np.array([[4.0]]))
    exact = math.log(2.0) + (1.0 + 9.0) / 8.0 - 0.5
    assert divergence(np.array([3.0]), np.array([[1.0]]), right) == pytest.approx(exact)


def test_distances_are_in_right_sds(rng):
    draws = np.array([1.0, 0.0]) + np.array([1.0, 0.5]) * rng.normal(size=(200_000, 2))
    found = measure.distances(draws, Posterior(np.zeros(2), np.diag([4.0, 1.0])))
    # Five standard errors of a mean and of an sd.
    assert found["shift"] == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(200_000))
    assert found["smallest_ratio"] == pytest.approx(0.5, rel=5 / math.sqrt(400_000))


def test_coverage_error_of_right_and_of_narrow_forecasts(rng):
    y = rng.normal(size=4000)
    # Five binomial standard errors of 4000 rows, and steps of 1 / 400 of the draws.
    right = measure.coverage_error(rng.normal(size=(400, 4000)), y)
    assert right < 5 * 0.5 / math.sqrt(4000) + 1 / 400
    narrow = measure.coverage_error(0.1 * rng.normal(size=(400, 4000)), y)
    missing = 0.95 - (2 * stats.norm.cdf(0.196) - 1)
    assert narrow == pytest.approx(missing, abs=5 * 0.5 / math.sqrt(4000) + 1 / 400)


def test_coverage_of_counts_is_randomised(rng):
    y = rng.poisson(0.5, size=4000)
    found = measure.coverage_error(rng.poisson(0.5, size=(400, 4000)), y)
    # Shares of ties among 400 draws have an error of at most 0.5 / 20.
    assert found < 5 * 0.5 / math.sqrt(4000) + 0.5 / 20


def test_probability_error_compares_bins_with_right_probabilities(rng):
    source = logistic_problem(rng, rows=10, test=10).fresh.expected
    assert measure.probability_error(source, source) == 0.0
    shifted = source + np.array([-0.1, 0.1])
    assert measure.probability_error(shifted, source) == pytest.approx(0.1)


def test_opinions_have_a_grey_zone_and_take_the_worst():
    found = {"skill": 0.9, "coverage_error": 0.09, "shift": 0.1, "smallest_ratio": 0.5}
    assert measure.opinions(found) == {"predict": "good", "intervals": "grey", "parameters": "bad"}
    assert measure.opinions({"skill": float("nan")}) == {"predict": "bad"}


def test_skill_without_anything_to_learn_is_zero():
    assert measure.skill(1.0, 1.2, 1.0) == 0.0
    assert measure.skill(3.0, 1.5, 1.0) == pytest.approx(0.75)


# ---------------------------------------------------------------------- rows and tables


def test_judgement_names_checks_by_use():
    findings = (
        Finding("predictive.coverage_95", "warn", 0.8, 0.9, "Narrow.", "Widen."),
        Finding("approximation.khat", "fail", 1.0, 0.7, "Bad.", "Change."),
    )
    found = judgement_of(Judgement(findings, ("predict", "intervals")))
    assert found.levels["predict"] == "unchecked"
    assert found.levels["overall"] == found.levels["intervals"] == "warn"
    assert found.levels["parameters"] == "fail"
    assert found.checks["intervals"]["warn"] == ["predictive.coverage_95"]
    assert found.checks["overall"]["fail"] == []


def row(kind, seed, label, level):
    values = dict.fromkeys(running.COLUMNS, "")
    return values | {
        "kind": kind,
        "seed": seed,
        "label_overall": label,
        "verdict_overall": level,
        "label_predict": label,
        "verdict_predict": level,
    }


def test_finished_rows_are_not_run_again_unless_fresh(tmp_path):
    path = tmp_path / "rows.csv"
    pairs = [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert running.pending(path, pairs, fresh=False) == pairs
    for kind, seed in pairs[:3]:
        running.append(path, row(kind, seed, "good", "ok"))
    assert running.pending(path, pairs, fresh=False) == [("b", 1)]
    only_a = [pair for pair in pairs if pair[0] == "a"]
    assert running.pending(path, only_a, fresh=True) == only_a
    assert running.pending(path, pairs, fresh=False) == [("a", 0), ("a", 1), ("b", 1)]


def test_a_fit_that_raises_is_a_row(monkeypatch):
    kind = kinds("tune")["linear_regression"]
    broken = dataclasses.replace(kind, make=lambda rng: Case("mean_field"))
    monkeypatch.setitem(kinds.__globals__, "kinds", lambda part: {"linear_regression": broken})
    found = running.row_of("tune", "linear_regression", 0)
    assert found["verdict_overall"] == found["verdict_predict"] == "error"
    assert found["error"].startswith("ConfigError: give either X and y")
    assert "verdict_compress" not in found


def _never_end():
    while True:
        pass


def test_a_fit_that_does_not_end_is_stopped():
    with pytest.raises(TimeoutError, match="not finished after"), running.limited(0.05):
        _never_end()
    with running.limited(0.05):  # enough for nothing at all
        pass


def test_rates_count_errors_as_failures_and_have_wilson_intervals():
    levels = ["ok"] * 8 + ["warn", "error"]
    rows = [row("a", seed, "good", level) for seed, level in enumerate(levels)]
    rows += [row("b", seed, "bad", "unchecked") for seed in range(5)]
    table = pd.DataFrame(rows)
    found = tables.rates(table, kept=False).set_index(["use", "label", "counted"])
    assert found.loc[("overall", "good", "ok"), "rate"] == "80 %"
    assert found.loc[("overall", "good", "fail"), "rate"] == "10 %"
    assert found.loc[("predict", "bad", "not ok"), "rate"] == "100 %"
    assert found.loc[("predict", "bad", "fail"), "rate"] == "0 %"
    assert found.loc[("overall", "good", "ok"), ""] == "missed"
    kept = tables.rates(table, kept=True).set_index(["use", "label", "counted"])
    assert kept.loc[("overall", "good", "ok"), ""] == "met"
    counts = tables.confusion(table).set_index(["use", "label"])
    assert counts.loc[("overall", "good"), ["ok", "warn", "error"]].tolist() == [8, 1, 1]


def test_wilson_interval_contains_its_ends():
    for count, total in ((0, 10), (3, 10), (10, 10)):
        low, high = tables.wilson(count, total)
        for bound in (low, high):
            if 1e-9 < bound < 1 - 1e-9:  # the score test is exactly at its threshold there
                z = (count / total - bound) / math.sqrt(bound * (1 - bound) / total)
                assert abs(z) == pytest.approx(1.959964, rel=1e-5)
    assert tables.wilson(0, 0) == (0.0, 1.0)


def test_first_seeds_of_all_kinds_come_first():
    pairs = verdicts.wanted("tune", "linear_*", 2)
    names = [name for name in kinds("tune") if name.startswith("linear_")]
    assert pairs == [(name, seed) for seed in (0, 1) for name in names]
