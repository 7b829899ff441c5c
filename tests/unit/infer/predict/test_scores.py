import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from zoo.infer.predict.scores import accuracy, brier, crps, expected_calibration_error, rmse


@pytest.fixture
def classified():
    rng = np.random.default_rng(0)
    return rng.dirichlet([1.0, 2.0, 0.5], 200), rng.integers(0, 3, 200)


def test_accuracy_equals_that_of_sklearn(classified):
    probabilities, y = classified
    assert accuracy(probabilities, y) == accuracy_score(y, probabilities.argmax(-1))


def test_brier_is_the_squared_distance_from_the_one_hot_truth(classified):
    probabilities, y = classified
    by_hand = np.mean(
        [
            sum((p - (k == label)) ** 2 for k, p in enumerate(row))
            for row, label in zip(*classified, strict=True)
        ]
    )
    assert brier(probabilities, y) == pytest.approx(by_hand, rel=1e-12)


def test_brier_of_two_classes_is_twice_that_of_sklearn():
    rng = np.random.default_rng(0)
    p, y = rng.uniform(size=100), rng.integers(0, 2, 100)
    ours = brier(np.stack([1 - p, p], -1), y)
    assert ours == pytest.approx(2 * brier_score_loss(y, p), rel=1e-12)


@pytest.mark.parametrize(("row", "label", "score"), [([1, 0], 0, 0.0), ([1, 0], 1, 2.0)])
def test_brier_lies_between_zero_and_two(row, label, score):
    assert brier(np.array([row], float), np.array([label])) == score


def test_brier_and_log_loss_agree_on_which_forecast_is_better(classified):
    probabilities, y = classified
    better = 0.5 * probabilities + 0.5 * np.eye(3)[y]
    assert brier(better, y) < brier(probabilities, y)
    assert log_loss(y, better) < log_loss(y, probabilities)


def test_calibration_error_of_a_case_counted_by_hand():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.65, 0.65])
    probabilities = np.stack([confidence, 1 - confidence], -1)
    y = np.array([0, 0, 0, 1, 0, 1])
    # 4 of 6 rows at 0.95 with accuracy 0.75, and 2 of 6 at 0.65 with accuracy 0.5
    by_hand = 4 / 6 * abs(0.75 - 0.95) + 2 / 6 * abs(0.5 - 0.65)
    assert expected_calibration_error(probabilities, y) == pytest.approx(by_hand, rel=1e-12)


def test_calibration_error_averages_inside_a_bin_first():
    probabilities = np.array([[0.91, 0.09], [0.99, 0.01]])
    # one bin (0.9, 1.0] of ten: mean confidence 0.95, accuracy 0.5
    error = expected_calibration_error(probabilities, np.array([0, 1]), bins=10)
    assert error == pytest.approx(0.45, rel=1e-12)


@pytest.mark.parametrize(("label", "error"), [(0, 0.0), (1, 1.0)])
def test_calibration_error_of_certainty_is_its_error_rate(label, error):
    probabilities = np.tile([1.0, 0.0], (10, 1))
    assert expected_calibration_error(probabilities, np.full(10, label)) == error


def test_calibration_error_vanishes_for_honest_forecasts():
    rng = np.random.default_rng(0)
    n = 100_000
    p = rng.uniform(0.5, 1.0, n)
    y = (rng.uniform(size=n) > p).astype(int)
    error = expected_calibration_error(np.stack([p, 1 - p], -1), y)
    # Each of the 8 bins in use is off by at most 5 standard errors of its accuracy.
    assert error < 5 * np.sqrt(8 * 0.25 / n)


def test_rmse_is_the_root_of_the_mean_square():
    assert rmse(np.array([1.0, 2.0]), np.array([1.0, 5.0])) == pytest.approx(np.sqrt(4.5))


def gaussian_crps(loc, scale, y):
    """Closed form, Gneiting and Raftery (2007), equation 5 of section 4.2."""
    z = (y - loc) / scale
    return scale * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (3.0, 0.2), (-1.0, 4.0)])
def test_crps_of_gaussian_samples_equals_the_closed_form(loc, scale):
    rng = np.random.default_rng(0)
    draws, repeats, y = 50, 4000, 1.0
    samples = rng.normal(loc, scale, (draws, repeats))
    scores = np.array([crps(samples[:, [k]], np.array([y])) for k in range(repeats)])
    error = (scores.mean() - gaussian_crps(loc, scale, y)) / (scores.std() / np.sqrt(repeats))
    assert abs(error) < 5, f"z = {error:.2f}"


def test_crps_equals_the_double_sum_over_pairs():
    rng = np.random.default_rng(0)
    samples, y = rng.normal(size=(7, 3)), rng.normal(size=3)
    pairs = np.abs(samples[:, None] - samples[None]).sum((0, 1)) / (7 * 6)
    by_hand = (np.abs(samples - y).mean(0) - 0.5 * pairs).mean()
    assert crps(samples, y) == pytest.approx(by_hand, rel=1e-12)


def test_crps_of_a_certain_forecast_is_its_absolute_error():
    assert crps(np.full((5, 2), 3.0), np.array([1.0, 4.0])) == pytest.approx(1.5)
