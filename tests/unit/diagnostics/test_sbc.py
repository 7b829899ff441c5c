from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from zoo.diagnostics import sbc, sbc_findings
from zoo.diagnostics.sbc import rank_test

DRAWS = 99


def ranks(scale=1.0, shift=0.0, simulations=400, seed=0):
    """Rank of a true value among draws of a posterior that is off by a scale and a shift."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=simulations)
    draws = scale * rng.normal(size=(DRAWS, simulations)) + shift
    return (draws < truth).sum(0)


def test_a_right_posterior_passes():
    findings, tests = sbc_findings({"a": ranks(), "b": ranks(seed=2)}, DRAWS)
    assert [finding.level for finding in findings] == ["ok", "ok"]
    assert tests["a"].counts.sum() == 400
    assert len(tests["a"].ecdf.points) == len(tests["a"].ecdf.lower)


@pytest.mark.parametrize(
    ("scale", "shift", "words"),
    [
        (0.5, 0.0, "too narrow"),
        (2.0, 0.0, "too wide"),
        (1.0, 1.0, "low ranks"),
        (1, -1, "high ranks"),
    ],
)
def test_a_wrong_posterior_fails_and_is_described(scale, shift, words):
    (result,), _ = sbc_findings({"a": ranks(scale, shift)}, DRAWS)
    assert result.level == "fail"
    assert words in result.advice


def test_alarms_are_as_rare_as_promised():
    levels = [
        sbc_findings({"a": ranks(simulations=100, seed=seed)}, DRAWS)[0][0].level
        for seed in range(250)
    ]
    alarms = np.mean([level != "ok" for level in levels])
    assert alarms < 0.01 + 5 * np.sqrt(0.01 * 0.99 / 250)


@pytest.mark.parametrize(
    ("p_value", "level"),
    [(sbc.P_WARN, "ok"), (sbc.P_WARN / 2, "warn"), (sbc.P_FAIL, "warn"), (sbc.P_FAIL / 2, "fail")],
)
def test_alarms_need_p_values_below_their_limits(monkeypatch, p_value, level):
    # Two tests of two parameters: the smallest p-value counts four times.
    tested = replace(rank_test(ranks(), DRAWS), chi_square_p=p_value / 4)
    monkeypatch.setattr(sbc, "rank_test", lambda values, num_draws: tested)
    findings, _ = sbc_findings({"a": ranks(), "b": ranks()}, DRAWS)
    assert [finding.value for finding in findings] == [p_value, p_value]
    assert [finding.level for finding in findings] == [level, level]


@pytest.mark.parametrize("draws", [1, 7, 99, 1000])
def test_bins_that_do_not_divide_evenly_have_the_right_expectation(draws):
    rng = np.random.default_rng(0)
    test = rank_test(rng.integers(0, draws + 1, 20_000), draws)
    assert test.expected.sum() == pytest.approx(20_000)
    assert test.chi_square_p > 1e-3
    by_hand = stats.chisquare(test.counts, test.expected).pvalue
    assert test.chi_square_p == pytest.approx(by_hand)


def test_a_few_simulations_do_not_crash():
    for count in (1, 2, 7):
        findings, _ = sbc_findings({"a": ranks(simulations=count)}, DRAWS)
        assert findings[0].level == "ok"


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "one number per simulation"), ([3, 100], "between 0 and 99"), ([-1], "between 0 and 99")],
)
def test_impossible_ranks_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        rank_test(np.array(values, int), DRAWS)
