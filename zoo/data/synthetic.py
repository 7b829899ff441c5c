"""Synthetic problems with known parameters, drawn with a fixed seed.

Values are rounded to six decimals, so that the data are the same on machines whose sine and
exponential differ in the last bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zoo.data.columns import Array
from zoo.data.dataset import DatasetInfo
from zoo.data.schema import Task

DATA_SEED = 0

LINEAR_WEIGHTS = np.array([1.5, -2.0, 0.5, 0.0, 3.0, -1.0, 0.25, 0.75])
LINEAR_INTERCEPT = 0.5
LINEAR_NOISE = 0.5

SPARSE_WEIGHTS = np.zeros(20)
SPARSE_WEIGHTS[[1, 5, 10, 16]] = 3.0, -2.0, 1.5, 1.0
SPARSE_NOISE = 0.5

POLYNOMIAL_COEFFICIENTS = np.array([1.0, -2.0, 0.5, 1.0])  # of 1, x, x², x³
POLYNOMIAL_NOISE = 0.5

MOONS_NOISE = 0.2


def sine_noise(x: Array) -> Array:
    """Return the noise standard deviation of `heteroscedastic_sine` at x."""
    return np.asarray(0.05 + 0.08 * (x + 3.0))


@dataclass(frozen=True)
class Synthetic:
    """A synthetic problem: its description, the function that draws it, and its true parameters."""

    info: DatasetInfo
    draw: Callable[[np.random.Generator], tuple[Array, Array]]
    truth: dict[str, Array]


def _linear(rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.standard_normal((200, LINEAR_WEIGHTS.size))
    noise = LINEAR_NOISE * rng.standard_normal(len(X))
    return X, LINEAR_INTERCEPT + (X * LINEAR_WEIGHTS).sum(axis=1) + noise


def _sparse_linear(rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.standard_normal((100, SPARSE_WEIGHTS.size))
    return X, (X * SPARSE_WEIGHTS).sum(axis=1) + SPARSE_NOISE * rng.standard_normal(len(X))


def _polynomial(rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-2.0, 2.0, size=100)
    a, b, c, d = POLYNOMIAL_COEFFICIENTS
    y = a + x * (b + x * (c + x * d)) + POLYNOMIAL_NOISE * rng.standard_normal(len(x))
    return x[:, None], y


def _two_moons(rng: np.random.Generator) -> tuple[Array, Array]:
    y = np.arange(400) % 2
    angle = rng.uniform(0.0, np.pi, size=len(y))
    upper = np.column_stack([np.cos(angle), np.sin(angle)])
    lower = np.column_stack([1.0 - np.cos(angle), 0.5 - np.sin(angle)])
    X = np.where(y[:, None] == 0, upper, lower)
    return X + MOONS_NOISE * rng.standard_normal(X.shape), y


def _heteroscedastic_sine(rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-3.0, 3.0, size=400)
    return x[:, None], np.sin(2.0 * x) + sine_noise(x) * rng.standard_normal(len(x))


def _info(name: str, task: Task, rows: int, features: int, description: str) -> DatasetInfo:
    return DatasetInfo(name, task, rows, features, "generated", description)


_ALL = (
    Synthetic(
        _info("heteroscedastic_sine", "regression", 400, 1, "y = sin 2x, noise grows with x."),
        _heteroscedastic_sine,
        {},
    ),
    Synthetic(
        _info("linear", "regression", 200, 8, "Linear regression with known weights."),
        _linear,
        {
            "weights": LINEAR_WEIGHTS,
            "intercept": np.array(LINEAR_INTERCEPT),
            "noise": np.array(LINEAR_NOISE),
        },
    ),
    Synthetic(
        _info("polynomial", "regression", 100, 1, "y = 1 - 2x + x²/2 + x³ and noise."),
        _polynomial,
        {"coefficients": POLYNOMIAL_COEFFICIENTS, "noise": np.array(POLYNOMIAL_NOISE)},
    ),
    Synthetic(
        _info("sparse_linear", "regression", 100, 20, "Linear regression, 4 of 20 weights not 0."),
        _sparse_linear,
        {
            "weights": SPARSE_WEIGHTS,
            "intercept": np.array(0.0),
            "noise": np.array(SPARSE_NOISE),
        },
    ),
    Synthetic(
        _info("two_moons", "classification", 400, 2, "Two interleaved half circles."),
        _two_moons,
        {"noise": np.array(MOONS_NOISE)},
    ),
)
SYNTHETIC: dict[str, Synthetic] = {entry.info.name: entry for entry in _ALL}


def read_synthetic(name: str) -> pd.DataFrame:
    """Return a synthetic problem as a table, in original units, the target `y` last."""
    X, y = SYNTHETIC[name].draw(np.random.Generator(np.random.PCG64(DATA_SEED)))
    names = ["x"] if X.shape[1] == 1 else [f"x{i}" for i in range(X.shape[1])]
    frame = pd.DataFrame(X.round(6), columns=names)
    return frame.assign(y=y.round(6))
