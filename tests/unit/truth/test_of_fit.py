"""What is too large for NUTS is refused before anything is sampled."""

import numpy as np
import pytest

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError
from zoo.truth import of_fit

#: Weights and biases of mlp:3-4-1, with noise that is known, and rows.
UNKNOWNS, ROWS = 3 * 4 + 4 + 4 + 1, 40


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(ROWS, 3)), rng.normal(size=ROWS)
    dataset = from_arrays(X, y, X_test=X, y_test=y, task="regression")
    sizes = {"net": "mlp:3-4-1", "num_steps": 2, "num_samples": 3, "progress_bar": False}
    return zoo.fit("mean_field", data=dataset, likelihood="gaussian(noise=0.5)", **sizes), dataset


@pytest.mark.parametrize(
    ("unknowns", "rows", "accepted"),
    [
        (UNKNOWNS, ROWS, True),
        (UNKNOWNS - 1, ROWS, False),
        (UNKNOWNS, ROWS - 1, False),
    ],
)
def test_problems_are_sampled_up_to_both_limits(monkeypatch, problem, unknowns, rows, accepted):
    monkeypatch.setattr(of_fit, "MAX_UNKNOWNS", unknowns)
    monkeypatch.setattr(of_fit, "MAX_ROWS", rows)

    def sampled(*args, **options):
        raise InterruptedError

    monkeypatch.setattr(of_fit, "truth", sampled)
    message = f"at most {unknowns} unknowns and {rows} rows; this problem has {UNKNOWNS} unknowns"
    expected = (
        pytest.raises(InterruptedError) if accepted else pytest.raises(ConfigError, match=message)
    )
    with expected:
        of_fit.truth_of(*problem)
