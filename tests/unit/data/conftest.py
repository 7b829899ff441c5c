import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(5.0, 3.0, 50),
            "b": rng.integers(0, 9, 50),
            "c": rng.choice(["u", "v", "w"], 50),
            "y": rng.normal(100.0, 20.0, 50),
        }
    )
