import numpy as np
import pytest

from zoo.data import describe, load, truth
from zoo.data.synthetic import SYNTHETIC, read_synthetic, sine_noise
from zoo.errors import UnknownNameError


@pytest.mark.parametrize("name", sorted(SYNTHETIC))
def test_information_is_true(name):
    frame, info = read_synthetic(name), describe(name)
    assert frame.shape == (info.num_rows, info.num_features + 1)
    assert load(name).task == info.task


@pytest.mark.parametrize("name", sorted(SYNTHETIC))
def test_the_problem_does_not_depend_on_the_split_seed(name):
    parts = []
    for seed in (0, 1):
        dataset = load(name, seed=seed, standardize=False)
        rows = np.c_[np.r_[dataset.X_train, dataset.X_test], np.r_[dataset.y_train, dataset.y_test]]
        parts.append(rows[np.lexsort(rows.T)])
    np.testing.assert_array_equal(parts[0], parts[1])


@pytest.mark.parametrize("name", ["linear", "sparse_linear"])
def test_least_squares_finds_the_known_weights(name):
    frame, known = read_synthetic(name), truth(name)
    X, y = frame.iloc[:, :-1].to_numpy(), frame["y"].to_numpy()
    design = np.c_[np.ones(len(X)), X]
    estimate, residual, *_ = np.linalg.lstsq(design, y)
    covariance = np.linalg.inv(design.T @ design) * known["noise"] ** 2
    z = (estimate - np.r_[known["intercept"], known["weights"]]) / np.sqrt(covariance.diagonal())
    assert np.abs(z).max() < 4
    freedom = len(X) - design.shape[1]
    assert abs(residual[0] / known["noise"] ** 2 - freedom) < 4 * np.sqrt(2 * freedom)


def test_sparse_weights_are_sparse():
    assert np.count_nonzero(truth("sparse_linear")["weights"]) == 4


def test_polynomial_is_cubic():
    frame, known = read_synthetic("polynomial"), truth("polynomial")
    powers = frame["x"].to_numpy()[:, None] ** np.arange(4)
    residual = frame["y"].to_numpy() - powers @ known["coefficients"]
    assert abs(np.mean(residual**2) / known["noise"] ** 2 - 1) < 4 * np.sqrt(2 / 100)


def test_sine_noise_grows_as_stated():
    frame = read_synthetic("heteroscedastic_sine")
    x, y = frame["x"].to_numpy(), frame["y"].to_numpy()
    z = (y - np.sin(2 * x)) / sine_noise(x)
    for part in (z[x < 0], z[x >= 0]):
        assert abs(np.mean(part**2) - 1) < 4 * np.sqrt(2 / len(part))
    assert sine_noise(3.0) > 5 * sine_noise(-3.0)


def test_moons_are_balanced_and_not_linear():
    frame = read_synthetic("two_moons")
    assert frame["y"].value_counts().tolist() == [200, 200]
    X = np.c_[np.ones(400), frame[["x0", "x1"]]]
    sign = 2 * frame["y"].to_numpy() - 1
    linear = np.sign(X @ np.linalg.lstsq(X, sign)[0])
    assert 0.8 < np.mean(linear == sign) < 0.95


def test_truth_cannot_be_changed_by_its_reader():
    truth("linear")["weights"][:] = 0
    assert truth("linear")["weights"].any()
    with pytest.raises(UnknownNameError, match=r"unknown synthetic data set 'wine'"):
        truth("wine")


@pytest.mark.parametrize("name", list(SYNTHETIC))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_test_rows_are_spread_like_training_rows(name, seed):
    """A split whose keys are the inputs would put one end of them into the test part."""
    data = load(name, test_fraction=0.2, seed=seed)
    # Of 20 rows, the mean has an sd of 0.22 and the sd one of 0.16: four of them, over 8 columns.
    assert np.abs(data.X_test.mean(0)).max() < 0.9
    assert data.X_test.std(0).min() > 0.4
