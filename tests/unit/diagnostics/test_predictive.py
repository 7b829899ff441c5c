import itertools
import warnings

import arviz_stats
import numpy as np
import pytest
import xarray
from scipy import stats

from tests.unit.diagnostics.synthetic_trees import SIGMA, Regression, the, tree_of
from zoo.diagnostics import held_out
from zoo.diagnostics.held_out import calibration_noise, held_out_findings, reliability_curve
from zoo.diagnostics.leave_one_out import loo_findings
from zoo.diagnostics.predictive import _Statistic, posterior_predictive_findings
from zoo.diagnostics.reading import task_of
from zoo.diagnostics.uniformity import exit_probability, randomized_pit, uniformity
from zoo.infer.predict.scores import expected_calibration_error
from zoo.infer.psis import leave_one_out, loo_pit

CHAINED = ("chain", "draw")


def replicated(samples, y, group="posterior_predictive", task="regression"):
    return tree_of(
        {
            group: {"y": ((*CHAINED, "obs_id"), np.asarray(samples)[None])},
            "observed_data": {"y": ("obs_id", np.asarray(y))},
        },
        task=task,
    )


def generator(seed=0):
    return np.random.default_rng(seed)


# ------------------------------------------------------------------ uniformity


def test_pointwise_intervals_of_the_band_are_binomial():
    result = uniformity(generator().uniform(size=200))
    inside = stats.binom.cdf(200 * result.upper, 200, result.points) - stats.binom.cdf(
        200 * result.lower - 1, 200, result.points
    )
    assert inside.min() > 0.99  # each holds more than all of them together


def test_the_probability_to_leave_a_band_is_exact():
    # By enumeration: four values in three cells, all 81 assignments.
    cells = np.array(list(itertools.product(range(3), repeat=4)))
    below = np.stack([(cells < k).sum(1) for k in (1, 2)], 1)
    points = np.array([1, 2]) / 3
    low = stats.binom.cdf(below, 4, points)
    high = stats.binom.cdf(4 - below, 4, points[::-1])
    levels = 2 * np.minimum(low, high).min(1)
    for level in np.unique(levels):
        assert exit_probability(level, 4, 3) == pytest.approx(np.mean(levels <= level))


def test_p_values_are_not_limited_by_simulations():
    # All values in the first of fifty cells, or all in the last: nothing is as far from uniform.
    result = uniformity(np.full(50, 0.001))
    assert result.p_value == pytest.approx(2 * 0.02**50)
    assert 0 <= uniformity(np.full(5000, 0.5)).p_value < 1e-95


@pytest.mark.parametrize("count", [20, 500])
def test_uniform_samples_leave_the_band_in_one_of_a_hundred_cases(count):
    rng = generator(count)
    results = [uniformity(rng.uniform(size=count)) for _ in range(300)]
    error = np.sqrt(0.01 * 0.99 / 300)
    assert np.mean([not result.inside for result in results]) < 0.01 + 5 * error
    # p-values are uniform up to the steps that discreteness makes, which are on the safe side.
    below = np.mean([result.p_value < 0.1 for result in results])
    assert 0.1 - 0.05 < below < 0.1 + 5 * np.sqrt(0.09 / 300)


@pytest.mark.parametrize(("a", "b"), [(0.6, 0.6), (2, 2), (1.5, 1)])
def test_other_distributions_leave_the_band(a, b):
    result = uniformity(generator().beta(a, b, 500))
    assert not result.inside
    assert result.p_value < 0.01


@pytest.mark.parametrize("values", [[], [1.2], [np.nan]])
def test_values_outside_the_unit_interval_are_refused(values):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        uniformity(np.array(values))


@pytest.mark.parametrize("law", [stats.norm(), stats.poisson(0.7), stats.poisson(30)])
def test_randomized_pit_of_the_right_law_is_uniform(law):
    samples, y = law.rvs((99, 3000), random_state=0), law.rvs(3000, random_state=1)
    assert stats.kstest(randomized_pit(samples, y), "uniform").pvalue > 1e-4


# ------------------------------------------------------------------ replicated data


def test_data_from_the_model_pass():
    model = Regression()
    (result,) = posterior_predictive_findings(model.fit())
    assert result.level == "ok"


@pytest.mark.parametrize("draws", [50, 1000])
@pytest.mark.parametrize("change", [lambda y: y + 3, lambda y: 4 * y])
def test_other_data_fail(change, draws):
    rng = generator()
    samples, y = rng.normal(size=(draws, 200)), rng.normal(size=200)
    assert posterior_predictive_findings(replicated(samples, y))[0].level == "ok"
    assert posterior_predictive_findings(replicated(samples, change(y)))[0].level == "fail"


def test_a_small_difference_is_a_warning():
    # 0.2 is four standard errors of a mean of 400; everything else is as expected.
    y = stats.norm.ppf((np.arange(400) + 0.5) / 400) + 0.2
    tree = replicated(generator().normal(size=(2000, 400)), y)
    assert posterior_predictive_findings(tree)[0].level == "warn"


def test_alarms_of_predictive_checks_are_rare():
    alarms = 0
    for seed in range(150):
        rng = generator(seed)
        tree = replicated(rng.normal(size=(400, 50)), rng.normal(size=50))
        alarms += posterior_predictive_findings(tree)[0].level != "ok"
    assert alarms / 150 < 0.01 + 5 * np.sqrt(0.01 * 0.99 / 150)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("share", "unusual"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("count", [1, 5])
def test_with_few_draws_a_statistic_is_judged_by_its_distance(count, share, unusual, sign):
    """Beyond all of 20 draws the p-value is 2 / 21 whatever the distance."""
    replications = np.linspace(-1.0, 1.0, 20)
    distance = share * stats.norm.ppf(1 - 0.01 / 2 / count)
    found = _Statistic("mean", replications, sign * distance * replications.std(), count)
    assert found.p_value == pytest.approx(2 / 21)
    assert found.sds == pytest.approx(sign * distance)
    assert found.beyond_all
    assert found.unusual is unusual


@pytest.mark.parametrize(("beyond", "unusual"), [(0, True), (10, False)])
def test_with_many_draws_a_distant_statistic_must_also_be_rare(beyond, unusual):
    """A p-value of 22 / 1001 is not rare among five statistics, however large the distance."""
    replications = np.r_[np.linspace(-0.1, 0.1, 1000 - beyond), np.full(beyond, 2.0)]
    found = _Statistic("maximum", replications, 1.9, 5)
    assert found.p_value == pytest.approx(2 * (1 + beyond) / 1001)
    assert found.sds > 5
    assert found.unusual is unusual


@pytest.mark.parametrize(("beyond", "p_value"), [(0, 2 / 1001), (1, 4 / 1001), (600, 802 / 1001)])
def test_p_values_count_the_draws_on_the_smaller_side(beyond, p_value):
    replications = np.arange(1000.0)
    for observed in (999.5 - beyond, beyond - 0.5):
        found = _Statistic("mean", replications, observed, 1)
        assert found.p_value == pytest.approx(p_value)
        assert found.beyond_all is (beyond == 0)


def test_classes_are_judged_by_their_frequencies():
    rng = generator()
    samples = rng.choice(3, p=[0.5, 0.3, 0.2], size=(500, 300))
    for p, level in (([0.5, 0.3, 0.2], "ok"), ([0.2, 0.3, 0.5], "fail")):
        tree = replicated(samples, rng.choice(3, p=p, size=300), task="classification")
        (result,) = posterior_predictive_findings(tree)
        assert result.level == level


def test_inflated_zeros_of_counts_fail():
    rng = generator()
    samples = rng.poisson(2.0, size=(500, 300))
    y = rng.poisson(2.0, size=300)
    assert posterior_predictive_findings(replicated(samples, y, task="counts"))[0].level == "ok"
    inflated = np.where(rng.uniform(size=300) < 0.3, 0, rng.poisson(2.86, size=300))
    (result,) = posterior_predictive_findings(replicated(samples, inflated, task="counts"))
    assert result.level == "fail"


def test_draws_that_are_not_finite_fail():
    samples = generator().normal(size=(100, 20))
    samples[3, 4] = np.inf
    (result,) = posterior_predictive_findings(replicated(samples, np.zeros(20)))
    assert result.level == "fail"
    assert "1 %" in result.message


def test_constant_data_and_draws_agree():
    tree = replicated(np.ones((50, 10)), np.ones(10))
    assert posterior_predictive_findings(tree)[0].level == "ok"


@pytest.mark.parametrize(
    ("tree", "task"),
    [
        (replicated(np.zeros((3, 2)), [0.5, 1.0], task="counts"), "counts"),
        (tree_of({"observed_data": {"y": ("obs_id", np.array([0, 1]))}}), "classification"),
        (tree_of({"observed_data": {"y": ("obs_id", np.array([0.0, 1]))}}), "regression"),
    ],
)
def test_the_task_is_read_or_guessed(tree, task):
    assert task_of(tree) == task


# ------------------------------------------------------------------ leave one out


@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning:arviz_stats")
def test_leave_one_out_is_that_of_arviz():
    model = Regression(correlation=0.5)
    tree = model.fit(model.mean_field)
    lp, log_q = tree["sample_stats/lp"], tree["sample_stats/log_q"]
    reference = arviz_stats.loo_approximate_posterior(tree, lp, log_q, pointwise=True)
    log_likelihood = tree["log_likelihood/y"].to_numpy()[0]
    elpd, khat, _ = leave_one_out(log_likelihood, (lp - log_q).to_numpy()[0])
    assert elpd == pytest.approx(reference.elpd_i.to_numpy(), rel=1e-10)
    assert khat == pytest.approx(reference.pareto_k.to_numpy(), rel=1e-10)
    plain = arviz_stats.loo(tree, pointwise=True)
    assert leave_one_out(log_likelihood)[0] == pytest.approx(plain.elpd_i.to_numpy(), rel=1e-10)


def test_leave_one_out_is_the_score_of_refitting():
    model = Regression(rows=40)
    elpd, _, _ = leave_one_out(model.fit(draws=8000)["log_likelihood/y"].to_numpy()[0])
    for i in range(5):
        x = model.x[i]
        precision = model.precision - np.outer(x, x) / SIGMA**2
        mean = np.linalg.solve(precision, (model.x.T @ model.y - x * model.y[i]) / SIGMA**2)
        spread = np.sqrt(SIGMA**2 + x @ np.linalg.solve(precision, x))
        assert elpd[i] == pytest.approx(stats.norm.logpdf(model.y[i], x @ mean, spread), abs=0.05)


def test_loo_pit_is_that_of_arviz():
    tree = Regression().fit()
    _, _, weights = leave_one_out(tree["log_likelihood/y"].to_numpy()[0])
    samples = tree["posterior_predictive/y"].to_numpy()[0]
    ours = loo_pit(samples, tree["observed_data/y"].to_numpy(), weights)
    assert ours == pytest.approx(arviz_stats.loo_pit(tree)["y"].to_numpy(), abs=1e-10)


def test_a_good_fit_passes_leave_one_out():
    findings = loo_findings(Regression().fit())
    assert [finding.level for finding in findings] == ["info", "ok", "ok"]
    assert "corrected for the guide" in findings[0].message


def test_a_useless_correction_is_left_out_and_said():
    model = Regression(columns=8)
    guide = stats.multivariate_normal(model.mean, 0.05 * model.covariance)
    findings = loo_findings(model.fit(guide))
    assert "not corrected for the guide" in the(findings, "predictive.loo").message


def test_influential_rows_are_a_warning():
    model = Regression(rows=20, columns=10)
    model.y[:3] += 8
    model = _refitted(model)
    result = the(loo_findings(model.fit()), "predictive.loo_pareto_k")
    assert result.level == "warn"


def _refitted(model):
    model.mean = model.covariance @ model.x.T @ model.y / SIGMA**2
    return model


@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_predictions_of_the_wrong_width_fail_loo_pit(scale):
    model = Regression(rows=300)
    tree = model.fit()
    samples = tree["posterior_predictive/y"]
    center = samples.mean(("chain", "draw"))
    tree["posterior_predictive"] = (center + scale * (samples - center)).to_dataset(name="y")
    result = the(loo_findings(tree), "predictive.loo_pit")
    assert result.level in ("warn", "fail")
    assert result.value < 0.001


def test_rows_of_certain_probability_do_not_stop_leave_one_out():
    log_likelihood = np.zeros((200, 5))
    log_likelihood[:, 0] = -generator().exponential(size=200)
    log_likelihood[:30, 1] = -1.0
    elpd, khat, _ = leave_one_out(log_likelihood)
    assert elpd[2:] == pytest.approx(0.0, abs=1e-12)
    assert np.isneginf(khat[2:]).all()
    tree = tree_of(
        {"log_likelihood": {"y": ((*CHAINED, "obs_id"), log_likelihood[None])}},
        task="classification",
    )
    assert len(loo_findings(tree)) == 2


def test_a_sum_over_unreliable_rows_is_not_reported():
    log_likelihood = -generator().exponential(size=(1, 100, 500))
    tree = tree_of({"log_likelihood": {"y": ((*CHAINED, "obs_id"), log_likelihood)}})
    found = the(loo_findings(tree), "predictive.loo")
    assert found.value is None
    assert "is not reported" in found.message


def test_stored_results_of_more_draws_are_used():
    tree = Regression().fit()
    rows = {"elpd": ("loo_row", np.full(50, -2.0)), "pareto_k": ("loo_row", np.zeros(50))}
    tree["leave_one_out"] = xarray.Dataset(rows, attrs={"draws": 1000, "corrected": 1})
    found = the(loo_findings(tree), "predictive.loo")
    assert found.value == 2.0
    assert "over 50 rows" in found.message


def test_many_rows_are_thinned(monkeypatch):
    monkeypatch.setattr("zoo.diagnostics.leave_one_out.MAX_ROWS", 50)
    log_likelihood = 0.1 * generator().uniform(size=(1, 100, 500))
    tree = tree_of({"log_likelihood": {"y": ((*CHAINED, "obs_id"), log_likelihood)}})
    assert "over 50 rows" in the(loo_findings(tree), "predictive.loo").message


# ------------------------------------------------------------------ held-out classes


def classes(probability, y):
    return tree_of(
        {"held_out": {"probability": (("row", "class"), probability), "y": ("row", y)}},
        task="classification",
    )


def drawn(probability, rng):
    return (rng.uniform(size=(len(probability), 1)) > probability.cumsum(1)).sum(1)


def sharpened(probability, power):
    raised = probability**power
    return raised / raised.sum(1, keepdims=True)


@pytest.mark.parametrize("rows", [50, 1000])
def test_alarms_on_calibrated_forecasts_are_rare(rows):
    alarms = 0
    for seed in range(40):
        rng = generator(seed)
        probability = rng.dirichlet([0.5, 0.5, 0.5], rows)
        alarms += held_out_findings(classes(probability, drawn(probability, rng)))[0].level != "ok"
    assert alarms / 40 < 0.01 + 5 * np.sqrt(0.01 * 0.99 / 40)


@pytest.mark.parametrize(("power", "level"), [(1.0, "ok"), (1.5, "warn"), (8.0, "fail")])
def test_over_confident_forecasts_are_found(power, level):
    rng = generator()
    probability = rng.dirichlet([1.0, 1.0, 1.0], 3000)
    y = drawn(probability, rng)
    (result,) = held_out_findings(classes(sharpened(probability, power), y))
    assert result.level == level
    assert level == "ok" or "overconfident" in result.advice


def test_under_confidence_is_named():
    rng = generator()
    probability = rng.dirichlet([0.3, 0.3, 0.3], 3000)
    (result,) = held_out_findings(classes(sharpened(probability, 0.3), drawn(probability, rng)))
    assert "underconfident" in result.advice


def test_calibration_noise_is_the_error_of_simulated_classes():
    rng = generator()
    probability = rng.dirichlet([1.0, 1.0], 400)
    simulated = [
        expected_calibration_error(probability, drawn(probability, rng)) for _ in range(300)
    ]
    noise = calibration_noise(probability)
    error = np.hypot(np.std(simulated) / np.sqrt(300), noise.std() / np.sqrt(len(noise)))
    assert abs(np.mean(simulated) - noise.mean()) < 5 * error


def test_reliability_curve_of_a_case_counted_by_hand():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.65, 0.65])
    probability = np.stack([confidence, 1 - confidence], -1)
    curve = reliability_curve(probability, np.array([0, 0, 0, 1, 0, 1]))
    assert curve["count"].to_numpy().tolist() == [2, 4]
    assert curve["confidence"].to_numpy() == pytest.approx([0.65, 0.95])
    assert curve["accuracy"].to_numpy() == pytest.approx([0.5, 0.75])
    assert (curve["lower"] < curve["accuracy"]).all()
    assert (curve["upper"] > curve["accuracy"]).all()


def test_the_reliability_curve_gives_the_calibration_error():
    rng = generator()
    probability, y = rng.dirichlet([1.0, 2.0, 0.5], 300), rng.integers(0, 3, 300)
    curve = reliability_curve(probability, y)
    gap = np.abs(curve["accuracy"] - curve["confidence"])
    error = float((gap * curve["count"]).sum() / 300)
    assert error == pytest.approx(expected_calibration_error(probability, y), rel=1e-12)


def test_probabilities_that_are_not_finite_fail():
    probability = np.full((10, 2), 0.5)
    probability[3] = np.nan
    assert held_out_findings(classes(probability, np.zeros(10, int)))[0].level == "fail"


# ------------------------------------------------------------------ held-out numbers


def numbers(samples, y):
    return tree_of({"held_out": {"y_samples": (("draw", "row"), samples), "y": ("row", y)}})


@pytest.mark.parametrize(("scale", "coverage"), [(1.0, 0.95), (0.5, 0.673), (2.0, 0.9999)])
def test_coverage_of_intervals_is_what_theory_gives(scale, coverage):
    """A 95 % interval of scale r covers 2 Phi(1.96 r) - 1."""
    rng = generator()
    tree = numbers(scale * rng.normal(size=(500, 3000)), rng.normal(size=3000))
    result = the(held_out_findings(tree), "predictive.coverage_95")
    assert result.value == pytest.approx(coverage, abs=5 * np.sqrt(0.25 / 3000))
    assert result.level == {1.0: "ok", 0.5: "fail", 2.0: "warn"}[scale]


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_biased_predictions_fail_the_pit(shift):
    rng = generator()
    tree = numbers(rng.normal(size=(500, 400)), rng.normal(size=400) + shift)
    result = the(held_out_findings(tree), "predictive.held_out_pit")
    assert result.level == ("fail" if shift else "ok")


def test_alarms_on_right_predictions_are_rare():
    """Four checks of 1 % each (three of them share theirs); counts as well as numbers."""
    alarms = 0
    for seed in range(100):
        rng = generator(seed)
        draw = rng.normal if seed % 2 else lambda size, rng=rng: rng.poisson(1.5, size)
        findings = held_out_findings(numbers(draw(size=(200, 60)), draw(size=60)))
        alarms += any(finding.level != "ok" for finding in findings)
    assert alarms / 100 < 0.02 + 5 * np.sqrt(0.02 * 0.98 / 100)


def test_missing_held_out_values_are_left_out():
    rng = generator()
    y = rng.normal(size=50)
    y[:10] = np.nan
    result = the(
        held_out_findings(numbers(rng.normal(size=(100, 50)), y)), "predictive.held_out_pit"
    )
    assert result.level == "ok"
    assert held_out_findings(numbers(rng.normal(size=(100, 50)), np.full(50, np.nan))) == []


def test_predictive_draws_that_are_not_finite_fail():
    samples = generator().normal(size=(100, 50))
    samples[0, 0] = np.nan
    assert held_out_findings(numbers(samples, np.zeros(50)))[0].level == "fail"


def test_checks_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loo_findings(Regression(rows=20, columns=10).fit())


def test_ties_of_loo_pit_are_spread_over_their_weight():
    """Of two thousand rows whose draws all equal the observation, PIT values are uniform."""
    rows = 2000
    samples, weights = np.zeros((4, rows)), np.full((4, rows), 0.25)
    values = loo_pit(samples, np.zeros(rows), weights)
    assert stats.kstest(values, "uniform").pvalue > 0.01
    half = np.where(np.arange(4)[:, None] < 2, -1.0, samples)  # half of the draws lie below
    values = loo_pit(half, np.zeros(rows), weights)
    assert stats.kstest(values, stats.uniform(0.5, 0.5).cdf).pvalue > 0.01


def test_calibration_noise_has_the_bins_of_the_calibration_error():
    """Confidences in the last three bins, which an index that is off by one would merge."""
    confidence = np.array([0.85, 0.92, 0.99] * 30)
    probability = np.stack([confidence, 1 - confidence], 1)
    rng = np.random.default_rng(held_out.SEED)
    noise = calibration_noise(probability)
    for error in noise[:20]:
        correct = rng.uniform(size=len(confidence)) < confidence
        assert error == pytest.approx(expected_calibration_error(probability, 1 - correct))
