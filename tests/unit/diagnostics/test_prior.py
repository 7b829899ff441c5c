import numpy as np
import pytest
import xarray

from tests.unit.diagnostics.synthetic_trees import Regression, the, tree_of
from zoo.diagnostics.prior import EXPLAINED, conflict_findings, prior_findings, reach_findings

CHAINED = ("chain", "draw")


def predicted(samples, y, task="regression"):
    return tree_of(
        {
            "prior_predictive": {"y": ((*CHAINED, "obs_id"), np.asarray(samples)[None])},
            "observed_data": {"y": ("obs_id", np.asarray(y))},
        },
        task=task,
    )


def stored(replicated, observed, posterior, name=EXPLAINED):
    return tree_of(
        {
            "prior_statistics": xarray.Dataset(
                {
                    "replicated": (("draw", "statistic"), np.asarray(replicated)[:, None]),
                    "posterior": (("posterior_draw", "statistic"), np.asarray(posterior)[:, None]),
                    "observed": ("statistic", [observed]),
                },
                coords={"statistic": [name]},
            )
        }
    )


@pytest.mark.parametrize(("shift", "level"), [(0.0, "ok"), (4e3, "warn"), (5e6, "fail")])
def test_data_that_a_heavy_tailed_prior_does_not_reach(shift, level):
    rng = np.random.default_rng(0)
    samples = rng.standard_cauchy(size=(500, 1)) + rng.normal(size=(500, 30))
    samples[:2, 0] = [np.inf, np.nan]
    (result,) = reach_findings(predicted(samples, rng.normal(size=30) + shift))
    assert result.level == level
    assert (result.value > result.threshold) == (level != "ok")


def test_a_prior_that_is_too_wide_is_no_alarm():
    rng = np.random.default_rng(0)
    (result,) = reach_findings(predicted(1e4 * rng.normal(size=(200, 30)), rng.normal(size=30)))
    assert result.level == "ok"


def test_a_prior_without_rare_classes_cannot_reach_them():
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 10, size=(200, 1000))
    y = np.where(rng.uniform(size=1000) < 0.95, 3, 4)
    assert reach_findings(predicted(samples, y, "classification"))[0].level == "fail"
    assert reach_findings(predicted(samples, samples[0], "classification"))[0].level == "ok"


def test_draws_that_overflow_reach_anything():
    samples = np.random.default_rng(0).normal(size=(200, 30))
    samples[:20] = np.nan
    assert reach_findings(predicted(samples, np.full(30, 1e6)))[0].level == "ok"


def test_a_prior_holds_the_posterior_back_only_if_the_posterior_falls_short():
    """Weights N(0, 0.001) cannot explain what the data show: ratios of 3 against at most 0.1."""
    rng = np.random.default_rng(0)
    before = 0.01 * rng.chisquare(3, size=300)
    narrow = reach_findings(stored(before, 3.0, before[:100]))
    assert [result.level for result in narrow] == ["fail", "fail"]
    overcome = reach_findings(stored(before, 3.0, np.full(100, 2.9)))
    assert [result.level for result in overcome] == ["info", "ok"]
    assert "reaches the data all the same" in overcome[0].message
    fine = reach_findings(stored(300 * before, 3.0, np.full(100, 0.1)))
    assert [result.level for result in fine] == ["ok", "ok"]


def test_good_priors_raise_no_alarm():
    """Data that come from the prior: 60 regressions, each with its own weights."""
    levels = {
        finding.level for seed in range(60) for finding in prior_findings(Regression(seed).fit())
    }
    assert levels == {"ok"}


@pytest.mark.parametrize(("shift", "level"), [(1.0, "ok"), (12.0, "warn"), (100.0, "fail")])
def test_a_posterior_far_from_its_prior_is_a_conflict(shift, level):
    tree = Regression().fit()
    tree["posterior"] = tree["posterior"].to_dataset() + shift
    result = the(conflict_findings(tree), "prior.conflict")
    assert result.level == level


def test_weights_that_are_not_identified_are_only_reported():
    tree = Regression().fit()
    tree["posterior"] = tree["posterior"].to_dataset() + 100
    tree.attrs["identified"] = ""
    assert the(conflict_findings(tree), "prior.conflict").level == "info"


def test_nothing_to_read_gives_no_finding():
    assert prior_findings(tree_of({})) == []
