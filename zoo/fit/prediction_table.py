"""Predictions as a table, one line per row of the data."""

from typing import Any

import pandas as pd

from zoo.errors import ConfigError
from zoo.infer.predict.draws import Prediction


def prediction_table(prediction: Prediction, *, interval: float = 0.9) -> pd.DataFrame:
    """Return a data frame of predictions.

    Parameters
    ----------
    prediction
        What a fit predicted.
    interval
        Probability inside the interval of a numeric prediction.

    Returns
    -------
    For classes: the most probable one, all probabilities, aleatoric and epistemic entropy. For
    numbers: mean, standard deviation, interval, aleatoric and epistemic standard deviation.
    """
    if not 0 < interval < 1:
        raise ConfigError(f"the interval is a probability between 0 and 1. Got {interval}.")
    if prediction.probabilities is not None:
        columns: dict[str, Any] = {"prediction": prediction.labels}
        for index, name in enumerate(prediction.classes):
            columns[f"probability of {name}"] = prediction.probabilities[:, index]
        columns |= {
            "aleatoric entropy": prediction.aleatoric,
            "epistemic entropy": prediction.epistemic,
        }
        return pd.DataFrame(columns)
    tail = (1 - interval) / 2
    low, high = prediction.quantile([tail, 1 - tail])
    return pd.DataFrame(
        {
            "prediction": prediction.mean,
            "sd": prediction.total**0.5,
            f"quantile {tail:.4g}": low,
            f"quantile {1 - tail:.4g}": high,
            "aleatoric sd": prediction.aleatoric**0.5,
            "epistemic sd": prediction.epistemic**0.5,
        }
    )
