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
#: Seed of problems that begin with uniform draws: with the seed of a split, these would be the keys
#: by which the split sorts the rows, and its test rows one end of the inputs.
UNIFORM_SEED = 7_654_321

Draw = Callable[[np.random.Generator], tuple[Array, Array]]

LINEAR = {
    "weights": np.array([1.5, -2.0, 0.5, 0.0, 3.0, -1.0, 0.25, 0.75]),
    "intercept": np.array(0.5),
    "noise": np.array(0.5),
}
SPARSE = {"weights": np.zeros(20), "intercept": np.array(0.0), "noise": np.array(0.5)}
SPARSE["weights"][[1, 5, 10, 16]] = 3.0, -2.0, 1.5, 1.0
#: The coefficients are those of 1, x, x², x³.
POLYNOMIAL = {"coefficients": np.array([1.0, -2.0, 0.5, 1.0]), "noise": np.array(0.5)}
MOONS = {"noise": np.array(0.2)}


@dataclass(frozen=True)
class Synthetic(DatasetInfo):
    """A synthetic problem: its description, the function that draws it, and its true parameters."""

    draw: Draw
    truth: dict[str, Array]
    seed: int = DATA_SEED


SYNTHETIC: dict[str, Synthetic] = {}


def _problem(
    task: Task,
    rows: int,
    features: int,
    description: str,
    seed: int = DATA_SEED,
    **truth: Array,
) -> Callable[[Draw], Draw]:
    """Add a problem to `SYNTHETIC` under the name of the function that draws X and y."""

    def add(draw: Draw) -> Draw:
        name = draw.__name__.lstrip("_")
        SYNTHETIC[name] = Synthetic(
            name, task, rows, features, "generated", description, draw, truth, seed
        )
        return draw

    return add


@_problem("regression", 200, 8, "Linear regression with known weights.", DATA_SEED, **LINEAR)
def _linear(rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.standard_normal((200, 8))
    noise = LINEAR["noise"] * rng.standard_normal(len(X))
    return X, LINEAR["intercept"] + (X * LINEAR["weights"]).sum(axis=1) + noise


@_problem("regression", 100, 20, "Linear regression, 4 of 20 weights not 0.", DATA_SEED, **SPARSE)
def _sparse_linear(rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.standard_normal((100, 20))
    return X, (X * SPARSE["weights"]).sum(axis=1) + SPARSE["noise"] * rng.standard_normal(len(X))


@_problem("regression", 100, 1, "y = 1 - 2x + x²/2 + x³ and noise.", UNIFORM_SEED, **POLYNOMIAL)
def _polynomial(rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-2.0, 2.0, size=100)
    a, b, c, d = POLYNOMIAL["coefficients"]
    y = a + x * (b + x * (c + x * d)) + POLYNOMIAL["noise"] * rng.standard_normal(len(x))
    return x[:, None], y


@_problem("classification", 400, 2, "Two interleaved half circles.", UNIFORM_SEED, **MOONS)
def _two_moons(rng: np.random.Generator) -> tuple[Array, Array]:
    y = np.arange(400) % 2
    angle = rng.uniform(0.0, np.pi, size=len(y))
    upper = np.column_stack([np.cos(angle), np.sin(angle)])
    lower = np.column_stack([1.0 - np.cos(angle), 0.5 - np.sin(angle)])
    X = np.where(y[:, None] == 0, upper, lower)
    return X + MOONS["noise"] * rng.standard_normal(X.shape), y


def sine_noise(x: Array) -> Array:
    """Return the noise standard deviation of `heteroscedastic_sine` at x."""
    return np.asarray(0.05 + 0.08 * (x + 3.0))


@_problem("regression", 400, 1, "y = sin 2x, noise grows with x.", UNIFORM_SEED)
def _heteroscedastic_sine(rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-3.0, 3.0, size=400)
    return x[:, None], np.sin(2.0 * x) + sine_noise(x) * rng.standard_normal(len(x))


def read_synthetic(name: str) -> pd.DataFrame:
    """Return a synthetic problem as a table, in original units, the target `y` last."""
    problem = SYNTHETIC[name]
    X, y = problem.draw(np.random.Generator(np.random.PCG64(problem.seed)))
    names = ["x"] if X.shape[1] == 1 else [f"x{i}" for i in range(X.shape[1])]
    frame = pd.DataFrame(X.round(6), columns=names)
    return frame.assign(y=y.round(6))
