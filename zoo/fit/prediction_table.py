"""Predictions as a table."""

import pandas as pd

from zoo.errors import ConfigError
from zoo.infer.predict.draws import Prediction


def prediction_table(prediction: Prediction, *, interval: float = 0.9) -> pd.DataFrame:
    """Return a data frame with one line per row.

    For classes: the most probable one, all probabilities, aleatoric and epistemic entropy. For
    numbers: mean, sd, an interval with probability ``interval``, aleatoric and epistemic sd.
    """
    if not 0 < interval < 1:
        raise ConfigError(f"the interval is a probability between 0 and 1. Got {interval}.")
    if prediction.probabilities is not None:
        names = [f"probability of {name}" for name in prediction.classes]
        table = pd.DataFrame(prediction.probabilities, columns=names)
        table.insert(0, "prediction", prediction.labels)
        entropies = {"aleatoric": prediction.aleatoric, "epistemic": prediction.epistemic}
        return table.assign(**{f"{part} entropy": value for part, value in entropies.items()})
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
