"""Calibration finds posteriors that are too narrow, and accepts those that are right."""

import numpy as np
import pytest

from zoo.data import from_arrays
from zoo.diagnostics import sbc_findings, verdict
from zoo.truth.calibration import calibrate

pytestmark = pytest.mark.slow

QUICK = {"net": "linear", "likelihood": "gaussian(noise=0.5)", "num_steps": 1500, "lr": 0.02}


def regression(correlation, rows=100):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    x[:, 1] = correlation * x[:, 0] + np.sqrt(1 - correlation**2) * x[:, 1]
    return from_arrays(x, x.sum(1) + 0.5 * rng.standard_normal(rows))


def levels(data, **settings):
    result = calibrate("mean_field", data=data, progress_bar=False, **(QUICK | settings))
    return {finding.check: finding for finding in result.findings}


@pytest.mark.timeout(1800)  # four minutes of one core
def test_mean_field_is_too_narrow_for_correlated_inputs():
    found = levels(regression(0.95))
    for index in (0, 1):
        finding = found[f"sbc.parameters.0.weight[{index}]"]
        assert finding.level == "fail"
        assert "too narrow" in finding.message
    assert found["sbc.parameters.0.weight[2]"].level == "ok"


# With fewer steps the sds of a full-rank guide are still too small, and calibration says so.
LONG = {"guide": "full_rank", "num_steps": 6000, "kl_warmup": 0.0}


@pytest.mark.timeout(3600)  # ten minutes of one core
@pytest.mark.parametrize(("correlation", "settings"), [(0.95, LONG), (0.0, {})])
def test_a_guide_that_can_be_right_passes(correlation, settings):
    found = levels(regression(correlation), **settings)
    assert {finding.level for finding in found.values()} <= {"ok", "info"}


def ranks_of_exact_posteriors(rng, *, correlation=0.0, factorised=False, rows=100):
    """Ranks of ten correlated quantities in 100 simulations of a conjugate linear regression."""
    x = rng.standard_normal((rows, 3))
    x[:, 1] = correlation * x[:, 0] + np.sqrt(1 - correlation**2) * x[:, 1]
    design = np.column_stack([x, np.ones(rows)])
    precision = design.T @ design / 0.25 + np.eye(4)
    covariance = np.linalg.inv(precision)
    root = np.diag(np.diag(precision) ** -0.5) if factorised else np.linalg.cholesky(covariance)
    ranks = []
    for _ in range(100):
        true = rng.standard_normal(4)
        y = design @ true + 0.5 * rng.standard_normal(rows)
        draws = covariance @ design.T @ y / 0.25 + rng.standard_normal((99, 4)) @ root.T

        def quantities(w, y=y):
            f = w @ design.T
            return np.column_stack([w, f[:, ::20], -((y - f) ** 2).sum(1)])

        ranks.append((quantities(draws) < quantities(true[None])).sum(0))
    return {f"q{index}": column for index, column in enumerate(np.array(ranks).T)}


def test_exact_posteriors_rarely_give_an_alarm():
    rng = np.random.default_rng(0)
    found = [sbc_findings(ranks_of_exact_posteriors(rng), 99)[0] for _ in range(300)]
    alarms = [verdict(findings).level != "ok" for findings in found]
    assert np.mean(alarms) < 0.01 + 3 * np.sqrt(0.01 * 0.99 / 300)


def test_the_best_factorised_posterior_always_fails_for_correlated_inputs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        ranks = ranks_of_exact_posteriors(rng, correlation=0.95, factorised=True)
        assert verdict(sbc_findings(ranks, 99)[0]).level == "fail"
