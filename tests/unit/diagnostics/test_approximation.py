import numpy as np
import pytest
from scipy import stats

from tests.unit.diagnostics.synthetic_trees import Regression, the, tree_of
from zoo.diagnostics.approximation import approximation_findings, pareto_khat
from zoo.diagnostics.reading import dimension_of
from zoo.infer.psis import khat_error, smoothed_log_weights, usable_khat


def weights_tree(log_weights, **attributes):
    zeros = np.zeros((1, len(log_weights)))
    stats_of_draws = {
        "lp": (("chain", "draw"), zeros + log_weights),
        "log_q": (("chain", "draw"), zeros),
    }
    return tree_of({"sample_stats": stats_of_draws}, **attributes)


def gaussian_log_weights(dimension, ratio, draws=4000, seed=0):
    """Target N(0, 1), proposal N(0, ratio^2) in every dimension."""
    x = ratio * np.random.default_rng(seed).normal(size=(draws, dimension))
    return (stats.norm.logpdf(x) - stats.norm.logpdf(x, scale=ratio)).sum(1)


@pytest.mark.parametrize("ratio", [0.9, 0.6, 0.4])
def test_khat_is_the_tail_index_of_a_narrow_gaussian(ratio):
    r"""w = exp(z^2 (1 - r^2) / 2) / r has P(w > t) ~ t^{-1 / (1 - r^2)}: k = 1 - r^2.

    A Gaussian's tail has a logarithmic factor that biases the estimate at finite samples downwards.
    """
    estimates = [pareto_khat(gaussian_log_weights(1, ratio, 20_000, seed)) for seed in range(5)]
    assert np.mean(estimates) == pytest.approx(1 - ratio**2, abs=0.2)


def test_khat_orders_guides_by_their_width():
    values = [pareto_khat(gaussian_log_weights(3, ratio)) for ratio in (0.95, 0.8, 0.5, 0.3)]
    assert values == sorted(values)


def test_equal_weights_have_no_tail():
    assert pareto_khat(np.full(500, -3.0)) == -np.inf
    assert pareto_khat(np.r_[np.linspace(-9, -5, 400), np.zeros(400)]) == -np.inf


def test_few_draws_have_no_khat():
    log_weights, khat = smoothed_log_weights(np.arange(20.0))
    assert np.isnan(khat)
    assert np.exp(log_weights).sum() == pytest.approx(1.0)


def test_smoothed_weights_sum_to_one():
    log_weights, _ = smoothed_log_weights(gaussian_log_weights(3, 0.5))
    assert np.exp(log_weights).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("draws", "limit"), [(100, 0.5), (1000, 2 / 3), (10_000, 0.7), (5, 0.0)])
def test_usable_khat_depends_on_the_draws(draws, limit):
    assert usable_khat(draws) == pytest.approx(limit)


def test_an_exact_guide_passes_with_no_gap():
    model = Regression()
    findings = approximation_findings(model.fit())
    assert [finding.level for finding in findings] == ["ok", "ok"]
    assert the(findings, "approximation.elbo_gap").value == pytest.approx(0.0, abs=1e-9)


def test_a_good_guide_passes():
    findings = approximation_findings(weights_tree(gaussian_log_weights(5, 0.95)))
    assert {finding.level for finding in findings} == {"ok"}


@pytest.mark.parametrize(
    ("dimension", "has_truth", "level"),
    [(10, False, "fail"), (10, True, "info"), (5000, False, "info"), (5000, True, "info")],
)
def test_the_level_of_a_large_khat_depends_on_what_it_can_tell(dimension, has_truth, level):
    tree = weights_tree(gaussian_log_weights(10, 0.3), dimension=dimension)
    result = the(approximation_findings(tree, has_truth), "approximation.khat")
    assert result.value > 0.7
    assert result.level == level


def test_gap_estimates_the_divergence_of_gaussians():
    ratio, dimension = 0.8, 4
    result = the(
        approximation_findings(weights_tree(gaussian_log_weights(dimension, ratio, 20_000))),
        "approximation.elbo_gap",
    )
    divergence = dimension * (-np.log(ratio) + (ratio**2 - 1) / 2)
    assert result.value == pytest.approx(divergence, abs=0.03)
    assert result.level == "ok"


def test_a_large_gap_is_a_warning_unless_there_are_many_unknowns():
    log_weights = gaussian_log_weights(10, 0.4)
    for dimension, level in ((10, "warn"), (5000, "info")):
        findings = approximation_findings(weights_tree(log_weights, dimension=dimension))
        assert the(findings, "approximation.elbo_gap").level == level


@pytest.mark.parametrize(("draws", "level"), [(100, "ok"), (10_000, "warn")])
def test_a_gap_that_may_be_noise_is_no_warning(draws, level):
    """Log weights N(0, 2 g) have a gap of g; with g = 1.3, its error is 0.16 or 0.016."""
    log_weights = stats.norm.ppf((np.arange(draws) + 0.5) / draws, scale=np.sqrt(2.6))
    result = the(approximation_findings(weights_tree(log_weights)), "approximation.elbo_gap")
    assert result.value == pytest.approx(1.3, abs=0.1)
    assert result.level == level


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_densities_that_are_not_finite_fail(bad):
    log_weights = gaussian_log_weights(2, 0.9)
    log_weights[7] = bad
    (result,) = approximation_findings(weights_tree(log_weights))
    assert result.level == "fail"
    assert "1 of 4000" in result.message


def test_few_draws_are_said_to_be_few():
    result = the(approximation_findings(weights_tree(np.arange(20.0))), "approximation.khat")
    assert result.level == "unchecked"
    assert "there are 20" in result.message


def test_dimension_is_counted_where_it_is_not_given():
    assert dimension_of(Regression(columns=7).fit()) == 7
    assert dimension_of(tree_of({}, dimension=12)) == 12


def test_the_error_of_khat_is_that_of_its_estimates():
    """The scatter over seeds agrees with the asymptotic formula within a third."""
    values = [pareto_khat(gaussian_log_weights(1, 0.6, 2000, seed)) for seed in range(40)]
    assert khat_error(np.mean(values), 2000) == pytest.approx(np.std(values), rel=0.35)


@pytest.mark.parametrize(("ratio", "level"), [(0.45, "warn"), (0.2, "fail")])
def test_a_threshold_is_crossed_only_beyond_the_error(ratio, level):
    """k is 0.8 and 0.96; with 400 draws its error is 0.23, with 20,000 it is 0.09."""
    draws = {"warn": 400, "fail": 20_000}[level]
    tree = weights_tree(gaussian_log_weights(1, ratio, draws, seed=3))
    assert the(approximation_findings(tree), "approximation.khat").level == level


def reference_tree(shift=0.0, ratio=1.0, error=0.01, **attributes):
    """A guide whose mean is off by a shift and whose sd is a multiple of the true one."""
    rows = np.array([[shift, ratio, error, error], [0.0, 1.0, error, error]])[..., None]
    group = {
        "log_weight": ("importance_draw", gaussian_log_weights(1, 0.3)),
        "w": (("source", "statistic", "w_dim_0"), rows),
        "source": ("source", ["guide", "posterior"]),
        "statistic": ("statistic", ["mean", "sd", "mean_error", "sd_error"]),
    }
    tree = tree_of({"importance": group}, identified="w", dimension=1)
    tree["importance"].attrs |= attributes
    return tree


@pytest.mark.parametrize(
    ("shift", "ratio", "means", "sds"),
    [
        (0.1, 0.95, "ok", "ok"),
        (0.9, 1.0, "warn", "ok"),
        (1.5, 1.0, "fail", "ok"),
        (0.0, 0.75, "ok", "warn"),
        (0.0, 0.26, "ok", "fail"),
        (0.0, 1.8, "ok", "fail"),
    ],
)
def test_moments_are_compared_with_the_reference(shift, ratio, means, sds):
    findings = approximation_findings(reference_tree(shift, ratio))
    assert the(findings, "approximation.mean").level == means
    assert the(findings, "approximation.sd").level == sds
    assert the(findings, "approximation.khat").level == "info"
    assert "w[0]" in the(findings, "approximation.sd").message


def test_a_distance_within_its_error_is_no_finding():
    findings = approximation_findings(reference_tree(0.9, 0.75, error=0.3))
    assert {the(findings, f"approximation.{name}").level for name in ("mean", "sd")} == {"ok"}


def test_the_gap_uses_the_evidence_of_the_reference():
    tree = reference_tree(log_evidence=7.0, log_evidence_error=0.01)
    elbo = gaussian_log_weights(1, 0.3).mean()
    found = the(approximation_findings(tree), "approximation.elbo_gap")
    assert found.value == pytest.approx(7.0 - elbo)
    assert found.level == "fail"  # more than five nats: very strong evidence for the wrong model
    near = the(
        approximation_findings(reference_tree(log_evidence=elbo + 4.9, log_evidence_error=0.01)),
        "approximation.elbo_gap",
    )
    assert near.level == "warn"


@pytest.mark.parametrize(("missed", "level"), [(0.0, "ok"), (0.05, "warn"), (0.5, "fail")])
def test_modes_without_draws_of_the_guide_are_told(missed, level):
    found = the(
        approximation_findings(reference_tree(modes=2, missed=missed)), "approximation.modes"
    )
    assert found.level == level
    assert "2 modes" in found.message
