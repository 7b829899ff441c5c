import arviz_stats
import numpy as np
import pytest
from scipy import stats

from tests.unit.diagnostics.synthetic_trees import Regression, the, tree_of
from zoo.diagnostics.sensitivity import (
    SENSITIVE,
    contraction_findings,
    power_scaling,
    power_scaling_findings,
)

CHAINED = ("chain", "draw")


def site_tree(prior, posterior):
    return tree_of(
        {
            "prior": {"w": ((*CHAINED, "k"), prior[None])},
            "posterior": {"w": ((*CHAINED, "k"), posterior[None])},
        }
    )


def normals(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_contraction_of_gaussians_is_one_minus_the_ratio_of_variances():
    tree = site_tree(normals(20_000, 3), 0.5 * normals(20_000, 3, seed=1))
    result = the(contraction_findings(tree), "sensitivity.contraction")
    assert result.value == pytest.approx(0.75, abs=0.02)
    assert "0 of 1 sites" in result.message


def test_contraction_does_not_depend_on_units():
    prior, posterior = normals(4000, 3), 0.4 * normals(4000, 3, seed=1) + 0.7
    before = [finding.value for finding in contraction_findings(site_tree(prior, posterior))]
    tree = site_tree(2 + 50 * prior, 2 + 50 * posterior)
    assert [finding.value for finding in contraction_findings(tree)] == pytest.approx(before)
    assert before == pytest.approx([1 - 0.4**2], abs=0.05)


def test_a_site_that_did_not_move_is_named():
    tree = site_tree(normals(4000, 3), normals(4000, 3, seed=1))
    result = the(contraction_findings(tree), "sensitivity.contraction")
    assert result.value == pytest.approx(0.0, abs=0.1)
    assert "1 of 1 sites are about as wide as their prior: w" in result.message


def test_priors_without_a_variance_have_a_contraction():
    cauchy = stats.cauchy.rvs(size=(4000, 2), random_state=0)
    result = the(contraction_findings(site_tree(cauchy, 0.1 * cauchy)), "sensitivity.contraction")
    assert result.value == pytest.approx(0.99, abs=1e-6)


@pytest.mark.parametrize(
    ("prior", "posterior"),
    [
        (np.ones((50, 2)), normals(50, 2)),
        (normals(50, 2), normals(50, 3)),
        (normals(2, 2), normals(50, 2)),
        (np.full((50, 2), np.nan), normals(50, 2)),
    ],
)
def test_sites_that_cannot_be_compared_are_left_out(prior, posterior):
    assert contraction_findings(site_tree(prior, posterior)) == []


def test_a_constant_posterior_is_fully_contracted():
    findings = contraction_findings(site_tree(normals(50, 2), np.zeros((50, 2))))
    assert the(findings, "sensitivity.contraction").value == 1.0


def conjugate(prior_scale, prior_mean=0.0, rows=20, draws=4000, seed=0):
    """Return the tree of a Gaussian mean with unit noise and mean of the data near 0."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=rows)
    y -= y.mean()
    precision = rows + prior_scale**-2
    mean = prior_mean * prior_scale**-2 / precision
    theta = rng.normal(mean, precision**-0.5, size=draws)
    groups = {
        "functions": {"f": ((*CHAINED, "point"), theta[None, :, None])},
        "posterior": {"theta": (CHAINED, theta[None])},
        "log_prior": {"theta": (CHAINED, stats.norm.logpdf(theta, prior_mean, prior_scale)[None])},
        "log_likelihood": {
            "y": ((*CHAINED, "obs_id"), stats.norm.logpdf(y, theta[:, None], 1.0)[None])
        },
    }
    return tree_of(groups)


def test_a_wide_prior_does_not_matter():
    (result,) = power_scaling_findings(conjugate(prior_scale=10.0))
    assert result.level == "ok"
    assert result.value < SENSITIVE


def test_a_conflicting_prior_is_found():
    (result,) = power_scaling_findings(conjugate(prior_scale=0.2, prior_mean=3.0))
    assert result.level == "info"
    assert "in conflict" in result.message


def test_a_strong_prior_with_weak_data_is_found():
    (result,) = power_scaling_findings(conjugate(prior_scale=0.05, rows=1))
    assert result.level == "info"
    assert "strong compared with the data" in result.message


def test_power_scaling_is_that_of_arviz():
    tree = conjugate(prior_scale=0.5, prior_mean=1.0)
    reference = arviz_stats.psense_summary(tree, var_names=["theta"], round_to=12)
    theta = tree["posterior/theta"].to_numpy().T
    log_prior = tree["log_prior/theta"].to_numpy()[0]
    log_likelihood = tree["log_likelihood/y"].to_numpy()[0].sum(1)
    assert power_scaling(theta, log_prior)[0] == pytest.approx(reference["prior"].iloc[0])
    assert power_scaling(theta, log_likelihood)[0] == pytest.approx(reference["likelihood"].iloc[0])


def test_noise_of_many_weights_is_no_sensitivity():
    """A log prior that spreads over 30 nats and is independent of the outputs."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        groups = {
            "functions": {"f": ((*CHAINED, "point"), rng.normal(size=(1, 500, 32)))},
            "log_prior": {"w": (CHAINED, 30 * rng.normal(size=(1, 500)))},
            "log_likelihood": {"y": ((*CHAINED, "obs_id"), rng.normal(size=(1, 500, 4)))},
        }
        (result,) = power_scaling_findings(tree_of(groups))
        assert result.value > SENSITIVE
        assert result.level == "ok"
        assert "noise of re-weighting" in result.message


def test_a_flat_prior_has_no_sensitivity():
    assert power_scaling(normals(200, 3), np.full(200, -2.0)) == pytest.approx(np.zeros(3))


def test_few_draws_are_not_power_scaled():
    assert power_scaling_findings(conjugate(1.0, draws=50)) == []


def test_an_ordinary_fit_passes():
    tree = Regression().fit()
    assert power_scaling_findings(tree)[0].level == "ok"
