"""The table of predictions holds the numbers of the prediction, in units that can be compared."""

import numpy as np
import pytest

from zoo.errors import ConfigError
from zoo.fit.prediction_table import prediction_table
from zoo.infer.predict.draws import Prediction

NUMBERS = Prediction(
    mean=np.array([50.0, 150.0]),
    samples=np.stack([np.arange(101.0), 100 + np.arange(101.0)], 1),
    aleatoric=np.array([9.0, 16.0]),
    epistemic=np.array([16.0, 9.0]),
)
CLASSES = Prediction(
    mean=np.array([1, 0]),
    samples=np.zeros((3, 2)),
    aleatoric=np.array([0.3, 0.2]),
    epistemic=np.array([0.1, 0.0]),
    probabilities=np.array([[0.2, 0.8], [0.9, 0.1]]),
    classes=("cat", "dog"),
)


@pytest.mark.parametrize(("interval", "low", "high"), [(0.9, 5, 95), (0.5, 25, 75)])
def test_numbers_have_standard_deviations_and_a_central_interval(interval, low, high):
    table = prediction_table(NUMBERS, interval=interval)
    np.testing.assert_allclose(table["prediction"], [50, 150])
    np.testing.assert_allclose(table["sd"], [5, 5])
    np.testing.assert_allclose(table["aleatoric sd"], [3, 4])
    np.testing.assert_allclose(table["epistemic sd"], [4, 3])
    np.testing.assert_allclose(table[f"quantile {low / 100}"], [low, 100 + low])
    np.testing.assert_allclose(table[f"quantile {high / 100}"], [high, 100 + high])
    assert len(table.columns) == 6


def test_classes_have_probabilities_and_entropies():
    table = prediction_table(CLASSES)
    assert table["prediction"].tolist() == ["dog", "cat"]
    assert table["probability of dog"].tolist() == [0.8, 0.1]
    assert table["aleatoric entropy"].tolist() == [0.3, 0.2]
    assert table["epistemic entropy"].tolist() == [0.1, 0.0]


@pytest.mark.parametrize("interval", [-0.1, 0.0, 1.0, 90.0, float("nan")])
def test_an_interval_that_is_no_probability_inside_its_bounds_is_refused(interval):
    with pytest.raises(ConfigError, match="a probability between 0 and 1"):
        prediction_table(NUMBERS, interval=interval)
