import re

import numpy as np
import pytest
import xarray
from scipy import signal, special, stats

from tests.unit.diagnostics.synthetic_trees import Regression, the, tree_of
from zoo.diagnostics.sampling import sampling_findings
from zoo.diagnostics.truth_distance import (
    RATIO_FAIL,
    RATIO_WARN,
    SHIFT_FAIL,
    SHIFT_WARN,
    comparable_pairs,
    distances,
    effective_draws,
    kernel_test,
    sliced_distance,
    truth_findings,
)
from zoo.errors import DataError

CHAINED = ("chain", "draw")


def outputs_tree(values, **attributes):
    """Return a tree with draws (chain, draw, point) of a network's outputs."""
    return tree_of({"functions": {"f": ((*CHAINED, "point"), values)}}, **attributes)


def normals(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def autoregressive(*shape, coefficient, seed=0):
    """Return chains along axis 1 with unit variance and this lag-1 autocorrelation."""
    start = 500
    shape = (shape[0], shape[1] + start, *shape[2:])
    scale = np.sqrt(1 - coefficient**2)
    values = signal.lfilter([scale], [1.0, -coefficient], normals(*shape, seed=seed), axis=1)
    return values[:, start:]


# ------------------------------------------------------------------ thresholds


@pytest.mark.parametrize(("shift", "coverage"), [(SHIFT_WARN, 0.9), (SHIFT_FAIL, 0.8)])
def test_thresholds_of_a_shift_are_coverages(shift, coverage):
    low, high = stats.norm.interval(0.95, loc=shift)
    assert stats.norm.cdf(high) - stats.norm.cdf(low) == pytest.approx(coverage, rel=1e-6)


@pytest.mark.parametrize(("ratio", "coverage"), [(RATIO_WARN, 0.9), (RATIO_FAIL, 0.8)])
def test_thresholds_of_a_ratio_are_coverages(ratio, coverage):
    low, high = stats.norm.interval(0.95, scale=ratio)
    assert stats.norm.cdf(high) - stats.norm.cdf(low) == pytest.approx(coverage, rel=1e-6)


# ------------------------------------------------------------------ distance to the truth


def test_an_exact_guide_has_no_distance():
    model = Regression()
    findings = truth_findings(model.fit(), model.truth())
    assert {finding.level for finding in findings} == {"ok"}
    assert {finding.check.split(".")[1] for finding in findings} == {
        "functions",
        "log_joint",
        "parameters",
    }


@pytest.mark.parametrize("correlation", [0.6, 0.9])
def test_mean_field_sds_are_too_small_by_what_theory_gives(correlation):
    r"""sd of the factorised optimum over the true one: :math:`(P_{kk} C_{kk})^{-1/2}`."""
    model = Regression(correlation=correlation, rows=200)
    theory = 1 / np.sqrt(np.diag(model.precision) * np.diag(model.covariance))
    findings = truth_findings(model.fit(model.mean_field, draws=4000), model.truth(draws=4000))
    result = the(findings, "truth.parameters.sd")
    # Relative error of a ratio of sds of n Gaussian draws each: 1 / sqrt(n), here 1 / sqrt(4000).
    # The value is beyond the noise, which is about four errors.
    assert theory.min() < result.value < theory.min() * np.exp(9 / np.sqrt(4000))
    assert result.level == ("fail" if theory.min() < RATIO_FAIL - 0.1 else "warn")
    assert "overconfident" in result.advice
    assert f"{result.value:.3g}" in result.message
    assert the(findings, "truth.parameters.mean").level == "ok"


@pytest.mark.parametrize(
    ("shift", "level"), [(0.0, "ok"), (0.4, "ok"), (0.9, "warn"), (1.5, "fail")]
)
def test_a_shift_is_found_by_means_and_wasserstein(shift, level):
    fit, truth = (
        outputs_tree(normals(1, 2000, 5) + shift),
        outputs_tree(normals(4, 1000, 5, seed=1)),
    )
    findings = truth_findings(fit, truth)
    for check in ("mean", "wasserstein"):
        result = the(findings, f"truth.functions.{check}")
        assert result.level == level
        assert result.value == pytest.approx(shift, abs=0.12)


@pytest.mark.parametrize(
    ("ratio", "level"),
    [(1.0, "ok"), (0.75, "warn"), (0.5, "fail"), (1.35, "warn"), (2.0, "fail")],
)
def test_a_wrong_scale_is_found(ratio, level):
    fit, truth = (
        outputs_tree(ratio * normals(1, 4000, 5)),
        outputs_tree(normals(4, 1000, 5, seed=1)),
    )
    result = the(truth_findings(fit, truth), "truth.functions.sd")
    assert result.level == level
    assert result.value == pytest.approx(ratio, rel=0.1)
    if level != "ok":
        (shown,) = re.findall(r"they are (\S+) times", result.message)
        share = 100 * (2 * stats.norm.cdf(1.96 * float(shown)) - 1)
        (covered,) = re.findall(r"a 95 % interval covers about (\S+) %", result.message)
        assert float(covered) == pytest.approx(share, abs=0.3)


@pytest.mark.parametrize(("shift", "ratio"), [(0.0, 1.0), (0.9, 0.75), (1.5, 2.0)])
def test_the_value_is_the_one_compared_with_the_threshold(shift, ratio):
    fit = outputs_tree(ratio * normals(1, 200, 5) + shift)
    for result in truth_findings(fit, outputs_tree(normals(4, 1000, 5, seed=1))):
        beyond = result.value > result.threshold
        if result.threshold < 1 and result.check.endswith(("sd", "mmd")):
            beyond = result.value < result.threshold
        assert beyond == (result.level != "ok"), result
        if result.level != "ok":
            assert f"{result.value:.3g}" in result.message


@pytest.mark.parametrize("location", [0.0, 100.0])
def test_an_sd_that_a_single_draw_makes_large_does_not_alarm(location):
    draws = normals(1, 1000, 1)
    draws[0, 0] = 40.0  # alone it makes the sd 1.6, and the kurtosis almost 400
    fit, truth = (location + values for values in (draws, normals(4, 1000, 1, seed=1)))
    result = the(truth_findings(outputs_tree(fit), outputs_tree(truth)), "truth.functions.sd")
    assert "1.59 times the true ones" in result.message
    assert "within Monte Carlo noise" in result.message
    assert (result.level, result.value) == ("ok", 1.0)


def test_a_point_estimate_fails():
    findings = truth_findings(outputs_tree(np.zeros((1, 500, 3))), outputs_tree(normals(4, 500, 3)))
    assert the(findings, "truth.functions.sd").level == "fail"
    assert the(findings, "truth.functions.sd").value == 0.0


def test_the_log_joint_never_fails_alone():
    def tree(values):
        return tree_of({"sample_stats": {"lp": (CHAINED, values)}})

    findings = truth_findings(tree(10 + normals(1, 1000)), tree(normals(4, 500, seed=1)))
    assert the(findings, "truth.log_joint.mean").level == "warn"
    assert {finding.level for finding in findings} <= {"ok", "warn"}


def test_few_draws_do_not_alarm():
    """Noise of 30 draws over 300 columns is far above the thresholds, and is no difference.

    The kernel test has a level of its own, which is tested below.
    """
    for seed in range(5):
        fit = outputs_tree(normals(1, 30, 300, seed=seed))
        findings = truth_findings(fit, outputs_tree(normals(1, 30, 300, seed=100 + seed)))
        assert {f.level for f in findings if not f.check.endswith("mmd")} == {"ok"}


def test_a_slowly_mixing_truth_does_not_alarm():
    alarms = 0
    for seed in range(20):
        truth = outputs_tree(autoregressive(4, 500, 5, coefficient=0.97, seed=seed))
        findings = truth_findings(outputs_tree(normals(1, 1000, 5, seed=100 + seed)), truth)
        alarms += any(finding.level == "fail" for finding in findings)
    assert alarms == 0


def test_effective_draws_of_a_first_order_process_are_known():
    chains = autoregressive(4, 5000, 1, coefficient=0.8)
    assert effective_draws(chains) == pytest.approx(20_000 * (1 - 0.8) / (1 + 0.8), rel=0.15)
    assert (effective_draws(normals(4, 500, 20)) <= 2000).all()


def test_distances_of_samples_of_different_sizes_are_those_of_scipy():
    fit, truth = normals(300, 2), normals(200, 2, seed=1)
    ours = distances(fit, truth)
    for k in range(2):
        reference = stats.wasserstein_distance(fit[:, k], truth[:, k]) / truth[:, k].std()
        assert ours[k] == pytest.approx(reference, abs=0.01)
    assert distances(fit[:200], truth)[0] == pytest.approx(
        stats.wasserstein_distance(fit[:200, 0], truth[:, 0]) / truth[:, 0].std(), rel=1e-10
    )


def test_distances_of_gaussians_are_known():
    truth = normals(20_000, 2)
    fit = normals(20_000, 2, seed=1) * np.array([1.0, 0.5]) + np.array([0.7, 0.0])
    # A shift d is d apart, a ratio r is |1 - r| sqrt(2 / pi).
    assert distances(fit, truth) == pytest.approx([0.7, 0.5 * np.sqrt(2 / np.pi)], abs=0.03)


def test_the_sliced_distance_sees_a_correlation_that_single_columns_hide():
    covariance = np.array([[1.0, 0.95], [0.95, 1.0]])
    truth = normals(2000, 2) @ np.linalg.cholesky(covariance).T
    fit = normals(2000, 2, seed=1)
    assert distances(fit, truth).max() < 0.1
    assert sliced_distance(fit, truth) > 0.2
    assert kernel_test(fit[:200], truth[:200])[1] < 0.01


def test_the_sliced_distance_does_not_depend_on_the_units_of_a_column():
    rng = np.random.default_rng(0)
    fit, truth = rng.normal(size=(300, 2)), rng.normal(0.3, 1.2, size=(300, 2))
    units = np.array([1.0, 1000.0])
    assert sliced_distance(fit * units, truth * units) == pytest.approx(sliced_distance(fit, truth))


def test_the_kernel_test_keeps_its_level():
    """p-values of equal distributions are uniform."""
    p_values = [
        kernel_test(normals(50, 3, seed=k), normals(50, 3, seed=1000 + k))[1] for k in range(100)
    ]
    assert 0 <= np.mean(np.array(p_values) < 0.1) < 0.1 + 5 * np.sqrt(0.09 / 100)
    assert 0.5 == pytest.approx(np.mean(p_values), abs=5 / np.sqrt(12 * 100))


def test_the_kernel_estimate_is_that_of_the_double_sum():
    fit, truth = normals(7, 2), normals(5, 2, seed=1)
    scaled = np.concatenate([fit, truth]) / truth.std(0)
    squared = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
    kernel = np.exp(-squared / (2 * np.median(squared[np.triu_indices(12, 1)])))
    first = (kernel[:7, :7].sum() - 7) / 42
    second = (kernel[7:, 7:].sum() - 5) / 20
    by_hand = first + second - 2 * kernel[:7, 7:].mean()
    assert kernel_test(fit, truth)[0] == pytest.approx(by_hand, rel=1e-10)


def test_outputs_that_are_constant_in_the_truth_are_left_out():
    truth, fit = normals(4, 500, 3), normals(1, 500, 3, seed=1)
    truth[..., 1] = 2.5
    (pair,) = comparable_pairs(outputs_tree(fit), outputs_tree(truth))
    assert pair.columns == ["f[0]", "f[2]"]
    assert comparable_pairs(outputs_tree(fit), outputs_tree(np.ones((4, 9, 3)))) == []


def functions_tree(values, names, **attributes):
    """Return a tree with draws (chain, draw, point, output) of named functions."""
    tree = tree_of({"functions": {"f": ((*CHAINED, "point", "output"), values)}})
    group = tree["functions"].to_dataset()
    group = group.assign_coords(point=10 * np.arange(values.shape[2]), output=list(names))
    group["f"].attrs |= attributes
    tree["functions"] = xarray.DataTree(group)
    return tree


def test_functions_are_named_in_messages():
    fit, truth = normals(1, 500, 3, 2), normals(4, 500, 3, 2, seed=1)
    fit[..., 2, 1] += 2.0
    findings = truth_findings(functions_tree(fit, "ab"), functions_tree(truth, "ab"))
    assert "(at b at row 20)" in the(findings, "truth.functions.mean").message


def test_functions_with_other_names_are_not_compared():
    """Logits of a run that was stored by an earlier version are not probabilities."""
    draws = normals(1, 50, 3, 2)
    with pytest.raises(DataError, match=r"such as a at row 0, are not those of the truth"):
        truth_findings(functions_tree(draws, "ab"), functions_tree(draws, "cd"))


def test_differences_below_the_resolution_do_not_count():
    """Logits 15 and 20 sds apart are the same prediction: P = 1 up to 3e-7."""

    def levels(shift, **attributes):
        logits = normals(1, 500, 4, 1) + 15, normals(4, 500, 4, 1, seed=1) + 15 + shift
        fit, truth = (functions_tree(special.expit(f), ["P"], **attributes) for f in logits)
        return {finding.level for finding in truth_findings(fit, truth)}

    assert levels(5.0, resolution=0.005) == {"ok"}
    assert "fail" in levels(5.0)
    # From 0.993 to 0.31 is a difference.
    assert "fail" in levels(-15.8, resolution=0.005)


def probabilities(seed, *shape, sd):
    """Return draws of 32 probabilities, many of them close to 0 or 1 and skewed."""
    where, directions = 4 * normals(32, seed=seed), normals(3, 32, seed=100 + seed) / 3**0.5
    logits = where + sd * normals(*shape, 3, seed=200 + len(shape) * shape[0] + seed) @ directions
    return functions_tree(special.expit(logits)[..., None], ["P"], resolution=0.005)


@pytest.mark.parametrize(("sd", "level"), [(3.0, "ok"), (0.9, "fail")])
def test_skewed_probabilities_alarm_only_if_they_differ(sd, level):
    """100 draws of a fit often have a smaller kurtosis than the truth."""
    for seed in range(15):
        fit, truth = probabilities(seed, 1, 100, sd=sd), probabilities(seed, 4, 1000, sd=3.0)
        levels = {f.level for f in truth_findings(fit, truth) if not f.check.endswith("mmd")}
        assert ("fail" in levels) if level == "fail" else (levels == {"ok"})


def test_other_shapes_are_refused():
    with pytest.raises(DataError, match="3 numbers per draw in the fit and 4 in the truth"):
        truth_findings(outputs_tree(normals(1, 9, 3)), outputs_tree(normals(1, 9, 4)))


# ------------------------------------------------------------------ the truth itself


def nuts(*, outputs=None, **statistics):
    groups = {"sample_stats": {name: (CHAINED, values) for name, values in statistics.items()}}
    if outputs is not None:
        groups["functions"] = {"f": ((*CHAINED, "point"), outputs)}
    return tree_of(groups, kind="nuts")


def test_independent_draws_are_believed():
    findings = sampling_findings(Regression().truth())
    assert {finding.level for finding in findings} == {"ok"}
    assert len(findings) == 7


def test_an_exact_truth_has_no_chains_to_judge():
    assert sampling_findings(Regression().truth(kind="exact")) == []


def test_chains_apart_fail_rhat():
    outputs = normals(4, 500, 3)
    outputs[0, :, 1] += 3.0
    result = the(sampling_findings(nuts(outputs=outputs)), "sampling.rhat")
    assert result.level == "fail"
    assert "f[1]" in result.message


def test_a_chain_that_never_moved_fails():
    outputs = normals(4, 500, 1)
    outputs[2] = 0.3
    findings = sampling_findings(nuts(outputs=outputs))
    assert the(findings, "sampling.rhat").level == "fail"


def test_slow_chains_fail_effective_sample_sizes():
    findings = sampling_findings(nuts(outputs=autoregressive(4, 500, 1, coefficient=0.98)))
    for check, level in (("ess_bulk", "fail"), ("ess_tail", "fail"), ("mcse", "warn")):
        assert the(findings, f"sampling.{check}").level == level


@pytest.mark.parametrize(("coefficient", "level"), [(0.0, "ok"), (0.95, "fail")])
def test_energy_that_moves_slowly_fails(coefficient, level):
    """E-BFMI of a first-order process is 2 (1 - a)."""
    energy = autoregressive(4, 4000, coefficient=coefficient)
    result = the(sampling_findings(nuts(energy=energy)), "sampling.bfmi")
    assert result.level == level
    assert result.value == pytest.approx(2 * (1 - coefficient), abs=0.15)


def test_energy_that_never_moved_fails():
    result = the(sampling_findings(nuts(energy=np.ones((2, 50)))), "sampling.bfmi")
    assert result.level == "fail"


@pytest.mark.parametrize(("count", "level"), [(0, "ok"), (1, "fail")])
def test_one_divergence_is_too_many(count, level):
    diverging = np.arange(400).reshape(4, 100) < count
    result = the(sampling_findings(nuts(diverging=diverging)), "sampling.divergences")
    assert (result.level, result.value) == (level, count)


@pytest.mark.parametrize(
    ("statistics", "level"),
    [
        ({"tree_depth": np.full((4, 100), 9)}, "ok"),
        ({"tree_depth": np.full((4, 100), 10)}, "warn"),
        ({"reached_max_treedepth": np.zeros((4, 100), bool)}, "ok"),
        ({"reached_max_treedepth": np.ones((4, 100), bool)}, "warn"),
    ],
)
def test_trajectories_that_are_cut_off(statistics, level):
    assert the(sampling_findings(nuts(**statistics)), "sampling.tree_depth").level == level


@pytest.mark.parametrize("shape", [(1, 500, 2), (4, 3, 2), (1, 1, 1), (2, 4, 1)])
def test_odd_shapes_do_not_crash(shape):
    sampling_findings(nuts(outputs=normals(*shape)))
    truth_findings(outputs_tree(normals(1, 100, shape[-1])), outputs_tree(normals(*shape)))
