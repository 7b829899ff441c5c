"""Data whose distribution is known: training, test and fresh rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[Any]
Inputs = Callable[[np.random.Generator, int], Any]
#: Observations, and their expectations or class probabilities, at given inputs.
Response = Callable[[np.random.Generator, Any], tuple[Array, Array]]

TRAIN, TEST, FRESH = 240, 120, 4000
TASKS = {
    "bernoulli": "classification",
    "categorical": "classification",
    "poisson": "counts",
}


@dataclass(frozen=True)
class Rows:
    """Inputs, observations, and the expectation (or class probabilities) of each observation."""

    X: Any
    y: Array
    expected: Array


@dataclass(frozen=True)
class Problem:
    """A data set and the distribution it comes from.

    Attributes
    ----------
    family
        Distribution of the observations: gaussian, heteroscedastic, student_t, bernoulli,
        categorical, poisson, or other.
    train, test
        What the fit sees.
    fresh
        Rows that no fit sees, to measure predictions with.
    active
        The inputs that matter, if the others do not.
    clean
        Training rows before they were spoilt: the right posterior is theirs.
    prior_scale
        Sd of a prior that knows the scale of the weights.
    """

    family: str
    train: Rows
    test: Rows
    fresh: Rows
    active: tuple[int, ...] | None = None
    clean: Rows | None = None
    prior_scale: float = 1.0

    @property
    def task(self) -> str:
        """The task of the zoo."""
        return TASKS.get(self.family, "regression")

    def dataset(self) -> Any:
        """Return training and test rows as a data set of arrays, used as they are."""
        from zoo.data import from_arrays

        return from_arrays(
            self.train.X,
            self.train.y,
            X_test=self.test.X,
            y_test=self.test.y,
            task=self.task,  # type: ignore[arg-type]
        )

    def frame(self) -> pd.DataFrame:
        """Return training and test rows as one table, the target ``y`` last."""
        parts = [pd.DataFrame(rows.X).assign(y=rows.y) for rows in (self.train, self.test)]
        return pd.concat(parts, ignore_index=True).rename(columns=str)


def problem(
    rng: np.random.Generator,
    inputs: Inputs,
    response: Response,
    *,
    family: str = "gaussian",
    rows: int = TRAIN,
    test: int = TEST,
    test_inputs: Inputs | None = None,
    active: tuple[int, ...] | None = None,
) -> Problem:
    """Draw a problem; test and fresh rows may have inputs of their own."""

    def drawn(number: int, source: Inputs) -> Rows:
        X = source(rng, number)
        return Rows(X, *response(rng, X))

    later = test_inputs or inputs
    return Problem(family, drawn(rows, inputs), drawn(test, later), drawn(FRESH, later), active)


def spoilt(source: Problem, **changes: Any) -> Problem:
    """Return the problem with other training rows, for which those of the source are right."""
    return replace(source, train=replace(source.train, **changes), clean=source.train)


# ---------------------------------------------------------------------- inputs


def normal(
    columns: int, *, correlation: float = 0.0, loc: float = 0.0, scale: float = 1.0
) -> Inputs:
    """Return normal inputs, all pairs equally correlated."""

    def inputs(rng: np.random.Generator, number: int) -> Array:
        own, common = rng.normal(size=(number, columns)), rng.normal(size=(number, 1))
        mixed = np.sqrt(1 - correlation) * own + np.sqrt(correlation) * common
        return np.asarray(loc + scale * mixed)

    return inputs


def uniform(columns: int, low: float = -2.0, high: float = 2.0) -> Inputs:
    """Return uniform inputs."""
    return lambda rng, number: rng.uniform(low, high, size=(number, columns))


def signs(rng: np.random.Generator, columns: int, size: float = 1.0) -> Array:
    """Return weights of one size and random signs."""
    return size * rng.choice([-1.0, 1.0], size=columns)


# ---------------------------------------------------------------------- responses


def gaussian(f: Callable[[Any], Array], noise: float) -> Response:
    """Return observations with normal noise around a function."""

    def response(rng: np.random.Generator, X: Any) -> tuple[Array, Array]:
        mean = f(X)
        return mean + noise * rng.normal(size=len(mean)), mean

    return response


def student_t(f: Callable[[Any], Array], noise: float, df: float) -> Response:
    """Return observations with the noise of a t distribution."""

    def response(rng: np.random.Generator, X: Any) -> tuple[Array, Array]:
        mean = f(X)
        return mean + noise * rng.standard_t(df, size=len(mean)), mean

    return response


def heteroscedastic(f: Callable[[Any], Array], noise: Callable[[Any], Array]) -> Response:
    """Return observations whose noise depends on the inputs."""

    def response(rng: np.random.Generator, X: Any) -> tuple[Array, Array]:
        mean = f(X)
        return mean + noise(X) * rng.normal(size=len(mean)), mean

    return response


def bernoulli(f: Callable[[Any], Array]) -> Response:
    """Return two classes with the log odds of a function."""

    def response(rng: np.random.Generator, X: Any) -> tuple[Array, Array]:
        p = 1 / (1 + np.exp(-f(X)))
        return (rng.uniform(size=len(p)) < p).astype(int), np.stack([1 - p, p], axis=1)

    return response


def categorical(f: Callable[[Any], Array]) -> Response:
    """Return classes with the logits of a function, one column per class."""

    def response(rng: np.random.Generator, X: Any) -> tuple[Array, Array]:
        logits = f(X)
        logits = logits + rng.gumbel(size=logits.shape)
        plain = f(X)
        p = np.exp(plain - plain.max(1, keepdims=True))
        return logits.argmax(1), p / p.sum(1, keepdims=True)

    return response


def poisson(f: Callable[[Any], Array], *, shape: float | None = None) -> Response:
    """Return counts with the log rate of a function; ``shape`` makes rates vary (Gamma)."""

    def response(rng: np.random.Generator, X: Any) -> tuple[Array, Array]:
        rate = np.exp(f(X))
        varied = rate if shape is None else rate * rng.gamma(shape, 1 / shape, size=len(rate))
        return rng.poisson(varied), rate

    return response


def linear(weights: Array, intercept: float = 0.0) -> Callable[[Any], Array]:
    """Return a linear function."""
    return lambda X: np.asarray(np.asarray(X) @ weights + intercept)
