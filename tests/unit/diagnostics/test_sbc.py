from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from zoo.diagnostics import sbc, sbc_findings
from zoo.diagnostics.sbc import failure_finding, mean_test, rank_test

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
        (1.0, 1.0, "biased, too high"),
        (1.0, -1.0, "biased, too low"),
    ],
)
def test_a_wrong_posterior_fails_and_is_described(scale, shift, words):
    (result,), _ = sbc_findings({"a": ranks(scale, shift)}, DRAWS)
    assert result.level == "fail"
    assert f"posteriors are {words} (p = " in result.message
    assert result.message.startswith("a: ")


@pytest.mark.parametrize(("shift", "words"), [(-1.0, "worse"), (1.0, "better")])
def test_ranks_of_the_log_likelihood_tell_how_well_draws_explain_the_data(shift, words):
    (result,), _ = sbc_findings({"log_likelihood": ranks(shift=shift)}, DRAWS)
    assert f"explain the data {words} than the true values" in result.message


def test_another_shape_is_found_by_the_bands_alone():
    # Every second tenth of the ranks is missing; mean and spread are those of uniform ranks.
    rng = np.random.default_rng(0)
    tenth = rng.choice([0, 2, 4, 5, 7, 9], size=2000)
    (result,), tests = sbc_findings({"a": 10 * tenth + rng.integers(0, 10, 2000)}, DRAWS)
    assert result.level == "fail"
    assert "of another shape" in result.message
    assert min(tests["a"].mean_p, tests["a"].spread_p) > 0.01


def test_checks_are_named_by_what_they_speak_for():
    names = ["0.weight[1]", "output[3]", "log_likelihood"]
    findings, tests = sbc_findings({name: ranks() for name in names}, DRAWS)
    found = [finding.check for finding in findings]
    assert found == ["sbc.parameters.0.weight[1]", "sbc.functions.output[3]", "sbc.log_likelihood"]
    assert list(tests) == names


def test_coverage_of_the_interval_is_counted():
    # The first and the last five of a hundred ranks are outside the central 90 %.
    test = rank_test(np.array([0, 4, 5, 50, 94, 95, 99, 99]), DRAWS)
    assert (test.below, test.above) == (2, 3)
    assert test.outside == pytest.approx(0.8)


@pytest.mark.parametrize("count", [10, 100])
@pytest.mark.parametrize("power", [1, 2])
def test_tails_of_the_mean_agree_with_simulation(count, power):
    # Tail probabilities of 1e-3, estimated from 400,000 means with a relative error of 5 %; the
    # saddlepoint approximation itself is off by a few per cent.
    rng = np.random.default_rng(0)
    support = (np.arange(DRAWS + 1) - DRAWS / 2) ** power
    means = support[rng.integers(0, DRAWS + 1, (400_000, count))].mean(1)
    for quantile in (0.001, 0.999):
        extreme = np.quantile(means, quantile)
        p_value, deviation = mean_test(support, np.full(count, extreme))
        assert p_value / 2 == pytest.approx(0.001, rel=0.25)
        assert np.sign(deviation) == np.sign(quantile - 0.5)


def test_tails_of_the_mean_are_exact_for_two_values():
    # The mean of fair coins is binomial; the approximation has no correction for its steps.
    draws = np.repeat([0.0, 1.0], [20, 80])
    p_value, deviation = mean_test(np.array([0.0, 1.0]), draws)
    low, high = 2 * stats.binom.sf(80, 100, 0.5), 2 * stats.binom.sf(78, 100, 0.5)
    assert low < p_value < high
    assert deviation == pytest.approx(6.0)


def test_means_at_the_boundary_have_tiny_p_values():
    test = rank_test(np.full(100, DRAWS), DRAWS)
    assert 0 <= test.mean_p < 1e-100
    assert rank_test(np.zeros(3, int), 0).p_value == 1.0  # one possible rank


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
    # Three tests of two quantities: the smallest p-value counts six times.
    tested = replace(rank_test(ranks(), DRAWS), spread_p=p_value / 6)
    monkeypatch.setattr(sbc, "rank_test", lambda values, num_draws: tested)
    findings, _ = sbc_findings({"a": ranks(), "b": ranks()}, DRAWS)
    assert [finding.value for finding in findings] == pytest.approx([p_value, p_value])
    assert [finding.level for finding in findings] == [level, level]


@pytest.mark.parametrize("draws", [1, 7, 99, 1000])
def test_bins_that_do_not_divide_evenly_have_the_right_expectation(draws):
    rng = np.random.default_rng(0)
    test = rank_test(rng.integers(0, draws + 1, 20_000), draws)
    assert test.expected.sum() == pytest.approx(20_000)
    assert stats.chisquare(test.counts, test.expected).pvalue > 1e-3


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


@pytest.mark.parametrize(("failed", "level"), [(0, "ok"), (1, "warn"), (5, "warn"), (6, "fail")])
def test_fits_that_diverge_are_counted(failed, level):
    finding = failure_finding(failed, 100)
    assert finding.level == level
    assert failed == 0 or f"{failed} of 100" in finding.message
