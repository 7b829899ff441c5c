"""Laws of batch statistics: their parameters are moments."""

import math

import pyro
import pytest
import torch

from guides.stochastic_batch_norm import MIN_SCALE, Moments, StochasticBatchNormGuide

pytestmark = pytest.mark.usefixtures("double_precision")

#: Moments of log sigma for batch variances 0.5, 1, 2, 4, and the mean of sigma under the log-normal
#: that has them; computed with 30 digits.
VARIANCES = (0.5, 1.0, 2.0, 4.0)
REFERENCE = {
    "m_sigma": 0.17328679513998633,
    "s_sigma_sq": 0.15014156684943795,
    "m_logvar": 0.34657359027997265,
    "s_logvar_sq": 0.60056626739775178,
    "lognormal_mean_of_sigma": 1.2819182367323586,
}


def moments_of(values):
    moments = Moments()
    for value in values:
        moments.update(value)
    return moments


def variance_guide():
    return StochasticBatchNormGuide("0.running_var", torch.zeros(1), is_variance=True)


def test_log_variances_have_the_reference_moments():
    moments = moments_of(torch.tensor([v]).log() for v in VARIANCES)
    assert float(moments.mean) == pytest.approx(REFERENCE["m_logvar"], rel=1e-6)
    assert float(moments.variance) == pytest.approx(REFERENCE["s_logvar_sq"], rel=1e-6)


def test_law_of_the_variance_is_the_reference_law_of_the_standard_deviation():
    guide = variance_guide()
    guide.match(moments_of(torch.tensor([v]).log() for v in VARIANCES))
    loc, scale = guide["0.running_var"].loc, guide["0.running_var"].log_scale.exp()
    # log sigma is half the log of the variance.
    assert float(loc / 2) == pytest.approx(REFERENCE["m_sigma"], rel=1e-6)
    assert float(scale.square() / 4) == pytest.approx(REFERENCE["s_sigma_sq"], rel=1e-6)
    mean_of_sigma = math.exp(float(loc / 2) + float(scale.square() / 8))
    assert mean_of_sigma == pytest.approx(REFERENCE["lognormal_mean_of_sigma"], rel=1e-6)
    torch.manual_seed(0)
    sigma = guide.draw(100_000)["0.running_var"].sqrt()
    error = float(sigma.std()) / math.sqrt(len(sigma))
    assert abs(float(sigma.mean()) - REFERENCE["lognormal_mean_of_sigma"]) < 5 * error


def test_moments_in_one_pass_are_those_of_all_values_together():
    values = 1e4 + torch.randn(257, 3, 2)
    moments = moments_of(values)
    assert moments.count == 257
    torch.testing.assert_close(moments.mean, values.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(moments.variance, values.var(0, correction=0), rtol=1e-9, atol=0)


def test_moments_of_float32_are_kept_in_double_precision():
    values = 1e3 + torch.randn(1000, 4, dtype=torch.float32)
    moments = moments_of(values)
    expected = values.double().var(0, correction=0)
    torch.testing.assert_close(moments.variance, expected, rtol=1e-9, atol=0)


def test_a_statistic_that_never_changes_keeps_a_density():
    guide = variance_guide()
    guide.match(moments_of([torch.tensor([0.7])] * 5))
    value = guide.draw(3)
    assert guide["0.running_var"].log_scale.exp() == pytest.approx(MIN_SCALE)
    torch.testing.assert_close(
        value["0.running_var"].log(), torch.full((3, 1), 0.7), atol=1e-5, rtol=0
    )
    assert guide.log_density({"0.running_var": value["0.running_var"][0]}).isfinite()


def test_nothing_seen_has_no_moments():
    for name in ("mean", "variance", "scale"):
        with pytest.raises(ValueError, match="no value has been seen"):
            getattr(Moments(), name)


def test_gradients_leave_the_law_alone():
    guide = variance_guide()
    assert [p for p in guide.parameters() if p.requires_grad] == []
    guide()  # Pyro's global store has nothing to be told, and does not warn
    assert list(pyro.get_param_store()) == []


def test_a_mean_is_normal_and_a_variance_log_normal():
    start = torch.tensor([-0.3, 0.7])
    mean = StochasticBatchNormGuide("0.running_mean", start, is_variance=False)
    variance = StochasticBatchNormGuide("0.running_var", start, is_variance=True)
    torch.testing.assert_close(mean.medians()["0.running_mean"], start)
    torch.testing.assert_close(variance.medians()["0.running_var"], start.exp())
