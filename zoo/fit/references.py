"""Reference predictors on the same rows as a fit: trivial, linear, and linear in a kernel.

A fit that predicts worse than these is not useful, however good its posterior is. They take seconds
and need no tuning: the penalty is chosen by cross-validation.

- ``trivial`` ignores the inputs: the mean, the shares of the classes, the marginal counts;
- ``linear`` is ridge, logistic or Poisson regression on standardised inputs;
- ``kernel`` adds the features of a Gaussian kernel at some training rows (Nyström), so that it also
  follows curves and interactions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from zoo.data import Dataset

Array = NDArray[Any]

NAMES = ("trivial", "linear", "kernel")
#: Training rows that a reference learns from; more are subsampled with a fixed seed.
MAX_ROWS = 2000
#: Inputs of a reference; of more, the first principal components are taken.
MAX_FEATURES = 100
#: Rows at which the kernel is centred, and its widths.
RIDGE_KERNEL = 300, (1.0, 0.25)
GLM_KERNEL = 100, (1.0,)
SEED = 20240601

#: Penalties per row that cross-validation chooses from.
RIDGE_PENALTIES = 10.0 ** np.arange(-8, 3.5, 0.5)
GLM_PENALTIES = 10.0 ** np.arange(1, -5, -1.0)
FOLDS = 5
#: Largest log rate of a count.
MAX_LOG_RATE = 30.0


@dataclass(frozen=True)
class Reference:
    """Predictions of a reference for some rows, in the units of encoded targets.

    Attributes
    ----------
    prediction
        Mean per row, or probabilities of shape ``(rows, classes)``.
    log_density
        Log density or log probability of the observed target, per row.
    gains
        By how much it lowers the loss of predicting the same for every row, in cross-validation,
        for every training row that it learned from.
    """

    prediction: Array
    log_density: Array
    gains: Array


def references(
    dataset: Dataset, x: Array | None = None, y: Array | None = None
) -> dict[str, Reference]:
    """Fit the references to the training rows, and predict the test rows or others.

    A reference whose predictions are not finite is left out.
    """
    x = dataset.X_test if x is None else x
    y = dataset.y_test if y is None else y
    rows = subsample(len(dataset.X_train), MAX_ROWS)
    inputs = Inputs(dataset.X_train[rows])
    train, targets = inputs.linear(dataset.X_train[rows]), dataset.y_train[rows]
    kernel = _Kernel(train, *(RIDGE_KERNEL if dataset.task == "regression" else GLM_KERNEL))
    new = inputs.linear(x)
    pairs = {
        "trivial": (train[:, :0], new[:, :0]),
        "linear": (train, new),
        "kernel": (kernel.features(train), kernel.features(new)),
    }
    learn = {"regression": ridge, "classification": logistic, "counts": poisson}[dataset.task]
    found = {}
    with np.errstate(all="ignore"):
        for name, (known, wanted) in pairs.items():
            model = learn(known, targets, max(dataset.num_classes, 2))
            reference = model(wanted, y)
            if np.isfinite(reference.prediction).all() and np.isfinite(reference.log_density).all():
                found[name] = reference
    return found


def subsample(num_rows: int, most: int) -> NDArray[np.int_]:
    """Return all rows, or this many of them drawn with a fixed seed, in order."""
    if num_rows <= most:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, most, replace=False))


def prediction_error(task: str, prediction: Array, y: Array) -> Array:
    """Return the error of predictions, per row; the smaller the better.

    The squared error for numbers, the Brier score for classes, the Poisson deviance for counts. All
    three are smallest on average for the true mean or the true probabilities.
    """
    prediction = np.asarray(prediction, np.float64)
    if task == "classification":
        one_hot = np.eye(prediction.shape[1])[y.astype(int)]
        return np.asarray(((prediction - one_hot) ** 2).sum(1))
    if task == "counts":
        mean = np.maximum(prediction, 1e-12)
        return np.asarray(2 * (special.xlogy(y, y / mean) - (y - mean)))
    return np.asarray((prediction - y) ** 2)


class Inputs:
    """Standardised rows without constant columns, or their first principal components."""

    def __init__(self, x: Array, most: int = MAX_FEATURES) -> None:
        flat = x.reshape(len(x), -1).astype(np.float64)
        self.mean, scale = flat.mean(0), flat.std(0)
        self.kept = scale > 1e-12 * np.maximum(1, np.abs(self.mean))
        self.scale = scale[self.kept]
        self.components: Array | None = None
        if self.kept.sum() > most:
            self.components = np.linalg.svd(self._standardised(x), full_matrices=False)[2][:most].T

    def _standardised(self, x: Array) -> Array:
        flat = x.reshape(len(x), -1).astype(np.float64)
        return np.asarray((flat - self.mean)[:, self.kept] / self.scale)

    def linear(self, x: Array) -> Array:
        """Return rows, which may be others, in these features."""
        values = self._standardised(x)
        return values if self.components is None else np.asarray(values @ self.components)


class _Kernel:
    """The inputs and the Nyström features of Gaussian kernels.

    Widths are multiples of the median of all squared distances. Ridge regression can afford more
    centres, and a second width for functions that change fast.
    """

    def __init__(self, x: Array, centres: int, widths: tuple[float, ...]) -> None:
        self.centres = x[subsample(len(x), centres)]
        distances = self._distances(self.centres)
        apart = distances[distances > 0]
        median = float(np.median(apart)) if apart.size else 1.0
        self.widths = [median * width for width in widths]
        self.roots = [_inverse_root(np.exp(-distances / width)) for width in self.widths]

    def _distances(self, x: Array) -> Array:
        squares = (x**2).sum(1)[:, None] + (self.centres**2).sum(1)
        return np.asarray(np.maximum(squares - 2 * x @ self.centres.T, 0))

    def features(self, x: Array) -> Array:
        # The penalty treats a linear function and one of the kernel alike.
        scale = np.sqrt(x.shape[1])
        distances = self._distances(x)
        curved = [
            scale * np.exp(-distances / width) @ root
            for width, root in zip(self.widths, self.roots, strict=True)
        ]
        return np.concatenate([x, *curved], 1)


def _inverse_root(kernel: Array) -> Array:
    values, vectors = np.linalg.eigh(kernel)
    large = values > 1e-10 * values[-1]
    return np.asarray(vectors[:, large] / np.sqrt(values[large]))


Model = Callable[[Array, Array], Reference]


def ridge(x: Array, y: Array, num_classes: int = 0) -> Model:
    """Return ridge regression; penalty and noise are chosen by exact leave-one-out residuals."""
    centre, mean = x.mean(0), y.mean()
    u, s, v = np.linalg.svd(x - centre, full_matrices=False)
    kept = s > 1e-10 * max(1.0, s[:1].sum())
    u, s, v = u[:, kept], s[kept], v[kept]
    target = u.T @ (y - mean)
    best: tuple[float, Array, Array] = (np.inf, target[:0], y)
    for penalty in len(y) * RIDGE_PENALTIES:
        shrunk = s**2 / (s**2 + penalty)
        leverage = (u**2) @ shrunk + 1 / len(y)
        residuals = (y - mean - u @ (shrunk * target)) / np.maximum(1 - leverage, 1e-9)
        error = float((residuals**2).mean())
        if error < best[0]:
            best = error, v.T @ (shrunk / s * target), residuals
    error, weights, residuals = best
    alone = (y - mean) * len(y) / max(len(y) - 1, 1)
    scale = float(np.sqrt(max(error, np.finfo(float).tiny)))

    def predict(new: Array, observed: Array) -> Reference:
        location = mean + (new - centre) @ weights
        density = stats.norm.logpdf(observed, location, scale)
        return Reference(location, density, alone**2 - residuals**2)

    return predict


def logistic(x: Array, y: Array, num_classes: int) -> Model:
    """Return multinomial logistic regression with a cross-validated L2 penalty."""
    one_hot = np.eye(num_classes)[y.astype(int)]
    shares = (one_hot.sum(0) + 0.5) / (len(y) + 0.5 * num_classes)
    start = np.log(shares)

    def loss(outputs: Array, targets: Array) -> tuple[Array, Array]:
        logs = special.log_softmax(outputs, axis=1)
        return -(targets * logs).sum(1), np.exp(logs) - targets

    weights, gains = _penalised(x, one_hot, loss, start)

    def predict(new: Array, observed: Array) -> Reference:
        logs = special.log_softmax(new @ weights[1:] + weights[0], axis=1)
        density = logs[np.arange(len(new)), observed.astype(int)]
        return Reference(np.exp(logs), density, gains)

    return predict


def poisson(x: Array, y: Array, num_classes: int = 0) -> Model:
    """Return Poisson regression with a cross-validated L2 penalty.

    Its density is a negative binomial if the counts vary more than a Poisson allows.
    """
    y = y.astype(np.float64)
    start = np.log([max(y.mean(), 0.5 / len(y))])

    def loss(outputs: Array, targets: Array) -> tuple[Array, Array]:
        log_rate = np.clip(outputs, -MAX_LOG_RATE, MAX_LOG_RATE)
        rate = np.exp(log_rate)
        return (rate - targets * log_rate).sum(1), rate - targets

    weights, gains = _penalised(x, y[:, None], loss, start)

    def rates(new: Array) -> Array:
        log_rate = (new @ weights[1:] + weights[0])[:, 0]
        return np.asarray(np.exp(np.clip(log_rate, -MAX_LOG_RATE, MAX_LOG_RATE)))

    fitted = rates(x)
    # Var y = rate + dispersion rate^2, by moments.
    dispersion = float(((y - fitted) ** 2 - fitted).sum() / (fitted**2).sum())

    def predict(new: Array, observed: Array) -> Reference:
        rate = rates(new)
        if dispersion > 1e-6:
            size = 1 / dispersion
            density = stats.nbinom.logpmf(observed, size, size / (size + rate))
        else:
            density = stats.poisson.logpmf(observed, rate)
        return Reference(rate, density, gains)

    return predict


#: From outputs and targets to losses, one per row, and their slopes.
Loss = Callable[[Array, Array], tuple[Array, Array]]


def _penalised(x: Array, targets: Array, loss: Loss, start: Array) -> tuple[Array, Array]:
    """Return intercepts (first row) and weights at the penalty with the best cross-validation.

    The second result are the gains of the rows over intercepts alone, in cross-validation.
    """
    rows, width = len(x), targets.shape[1]
    first = np.concatenate([start[None], np.zeros((x.shape[1], width))])
    if not x.shape[1] or rows < 2:
        return first, np.zeros(rows)
    fold = np.random.default_rng(SEED).permutation(rows) % min(FOLDS, rows)
    losses = np.zeros((len(GLM_PENALTIES), rows))
    for k in np.unique(fold):
        held, used = fold == k, fold != k
        weights = first
        for i, penalty in enumerate(GLM_PENALTIES):
            weights = _minimum(x[used], targets[used], loss, weights, penalty)
            losses[i, held] = loss(x[held] @ weights[1:] + weights[0], targets[held])[0]
    best = int(losses.mean(1).argmin())
    weights = first
    for penalty in GLM_PENALTIES[: best + 1]:
        weights = _minimum(x, targets, loss, weights, penalty)
    return weights, loss(np.tile(start, (rows, 1)), targets)[0] - losses[best]


def _minimum(x: Array, targets: Array, loss: Loss, start: Array, penalty: float) -> Array:
    """Minimise loss / rows + penalty / 2 |weights|^2, from a start; intercepts are free."""
    rows = len(x)

    def objective(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(start.shape)
        values, slope = loss(x @ weights[1:] + weights[0], targets)
        gradient = np.concatenate([slope.sum(0)[None], x.T @ slope]) / rows
        gradient[1:] += penalty * weights[1:]
        norm = float((weights[1:] ** 2).sum())
        return float(values.mean()) + penalty / 2 * norm, gradient.ravel()

    found = optimize.minimize(
        objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 200}
    )
    return np.asarray(found.x.reshape(start.shape))
