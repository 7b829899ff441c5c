r"""Evidence: the marginal likelihood of the data under a model.

For features :math:`\Phi` (n rows, d columns), :math:`w \sim N(m_0, \mathrm{diag}(\alpha)^{-1})` and
:math:`y \sim N(\Phi w, \beta^{-1} I)` posterior and evidence have a closed form. With :math:`A =
\mathrm{diag}(\alpha) + \beta \Phi^\top \Phi`:

.. math::
    m = A^{-1} (\alpha m_0 + \beta \Phi^\top y), \qquad
    \log p(y) = \tfrac12 \textstyle\sum \log \alpha_i + \tfrac{n}{2} \log \beta - E(m)
    - \tfrac12 \log |A| - \tfrac{n}{2} \log 2\pi

with :math:`E(m) = \frac{\beta}{2} \|y - \Phi m\|^2 + \frac12 \sum_i \alpha_i (m_i - m_{0i})^2`. The
Laplace approximation and the ELBO of a full-rank Gaussian give the same value. In bits, it is the
length of the prequential code, which encodes each row given its prediction from the previous rows.
Other codes of minimum description length are longer: by the divergence of a factorised posterior
from the exact one, or by the cost of encoding rounded weights first.

References: MacKay (1992), *Bayesian Interpolation*; Rissanen (1978), *Modeling by Shortest Data
Description*; Dawid (1984), *Statistical Theory: The Prequential Approach*.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from zoo.errors import DataError

Array = NDArray[np.float64]

#: Rounded weights are multiples of 2^-k; the code also encodes k, one of these.
EXPONENTS = range(0, 16)
#: Candidate noise variances, relative to the variance of the target.
NOISE_RANGE = (1e-10, 10.0)


@dataclass(frozen=True)
class LinearModel:
    """Bayesian linear regression with known noise, in closed form.

    Attributes
    ----------
    features, y
        Features, one row per observation, and observations.
    prior_precision, prior_mean
        One number per weight, or one for all.
    noise_precision
        Inverse variance of the noise.
    """

    features: Array
    y: Array
    prior_precision: ArrayLike
    noise_precision: float
    prior_mean: ArrayLike = 0.0

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.y.shape != (len(self.features),):
            raise DataError(
                "features must have one row per observation. Got shapes "
                f"{self.features.shape} and {self.y.shape}."
            )
        if not (self.alpha > 0).all() or not self.noise_precision > 0:
            raise DataError("precisions must be positive.")

    @property
    def size(self) -> int:
        """Number of weights."""
        return int(self.features.shape[1])

    @property
    def alpha(self) -> Array:
        """Prior precision of every weight."""
        return np.broadcast_to(np.asarray(self.prior_precision, dtype=float), self.size)

    @property
    def center(self) -> Array:
        """Prior mean of every weight."""
        return np.broadcast_to(np.asarray(self.prior_mean, dtype=float), self.size)

    @cached_property
    def precision(self) -> Array:
        """Posterior precision A, which is the Hessian of the negative log joint."""
        return np.diag(self.alpha) + self.noise_precision * self.features.T @ self.features

    @cached_property
    def mean(self) -> Array:
        """Posterior mean, which is also the mode."""
        pull = self.alpha * self.center + self.noise_precision * self.features.T @ self.y
        return np.linalg.solve(self.precision, pull).astype(np.float64)

    @property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision."""
        sign, log_det = np.linalg.slogdet(self.precision)
        if sign <= 0:
            raise DataError("the posterior precision is not positive definite in floating point.")
        return float(log_det)

    def log_likelihood(self, weights: Array) -> float:
        """Return log p(y | w)."""
        residual = self.y - self.features @ weights
        scale = self.noise_precision**-0.5
        return float(stats.norm.logpdf(residual, scale=scale).sum())

    def log_prior(self, weights: Array) -> float:
        """Return log p(w)."""
        return float(stats.norm.logpdf(weights, self.center, self.alpha**-0.5).sum())

    @property
    def log_evidence(self) -> float:
        """The exact log p(y)."""
        log_joint = self.log_likelihood(self.mean) + self.log_prior(self.mean)
        return log_joint + 0.5 * self.size * math.log(2 * math.pi) - 0.5 * self.log_det

    @property
    def mean_field_elbo(self) -> float:
        r"""ELBO of the best factorised Gaussian: exact means and variances :math:`1 / A_{ii}`."""
        gap = 0.5 * (np.log(np.diag(self.precision)).sum() - self.log_det)
        return self.log_evidence - float(gap)

    def elbo(self, mean: Array, covariance: Array) -> float:
        """Return the ELBO of any Gaussian; for the exact posterior it equals the log evidence."""
        log_joint = self.log_likelihood(mean) + self.log_prior(mean)
        entropy = 0.5 * np.linalg.slogdet(2 * math.pi * math.e * covariance)[1]
        return log_joint - 0.5 * float(np.sum(self.precision * covariance)) + float(entropy)

    @property
    def maximum_likelihood(self) -> float:
        """The log likelihood of the maximum likelihood weights."""
        best = np.linalg.lstsq(self.features, self.y, rcond=None)[0]
        return self.log_likelihood(best.astype(np.float64))

    @property
    def left_out_rmse(self) -> float:
        """Leave-one-out root mean squared error of least squares."""
        hat = self.features @ np.linalg.pinv(self.features)
        residual = self.y - hat @ self.y
        return float(np.sqrt(np.mean((residual / (1 - np.diag(hat))) ** 2)))


def two_part_bits(model: LinearModel, resolution: float) -> float:
    r"""Return the bits of the two-part code: rounded weights, then the data given the weights.

    Weights are the posterior mean, rounded to multiples of :math:`2^{-k}`; a grid point costs minus
    the logarithm of the prior probability of its cell. The best :math:`k` is encoded as well. The
    resolution is the distance between two distinguishable values of the data.
    """
    lengths = []
    for exponent in EXPONENTS:
        step = 2.0**-exponent
        rounded = np.round(model.mean / step) * step
        z = (rounded - model.center) * np.sqrt(model.alpha)
        half = 0.5 * step * np.sqrt(model.alpha)
        # By symmetry, use the lower tail, which is more accurate.
        cell = stats.norm.cdf(-np.abs(z) + half) - stats.norm.cdf(-np.abs(z) - half)
        nats = -float(np.log(cell).sum()) - model.log_likelihood(rounded)
        lengths.append(nats / math.log(2))
    return min(lengths) + math.log2(len(EXPONENTS)) - len(model.y) * math.log2(resolution)


def prequential_bits(model: LinearModel, resolution: float, *, plug_in: bool) -> float:
    """Return the bits of the prequential code, which predicts every row from the previous rows.

    Predictions plug in the posterior mean, or average over the posterior; then the code length is
    that of the evidence.
    """
    nats = 0.0
    for row in range(len(model.y)):
        seen = replace(model, features=model.features[:row], y=model.y[:row])
        feature = model.features[row]
        variance = 1 / model.noise_precision
        if not plug_in:
            variance += float(feature @ np.linalg.solve(seen.precision, feature))
        nats -= float(stats.norm.logpdf(model.y[row], feature @ seen.mean, math.sqrt(variance)))
    return code_bits(-nats, model, resolution)


def code_bits(log_density: float, model: LinearModel, resolution: float) -> float:
    """Return the code length in bits for a log density of the data; an ELBO gives bits-back."""
    return -log_density / math.log(2) - len(model.y) * math.log2(resolution)


def best_noise_precision(features: Array, y: Array, prior_precision: ArrayLike) -> float:
    """Return the noise precision that maximises the evidence, for weights with prior mean zero.

    The evidence is evaluated along the principal axes of the prior predictive, where it is a sum
    of independent terms.
    """
    whitened = features / np.sqrt(np.broadcast_to(prior_precision, features.shape[1]))
    spread, axes = np.linalg.eigh(whitened.T @ whitened)
    spread = spread.clip(min=0)
    known = spread > 1e-12 * max(float(spread.max(initial=0.0)), 1e-300)
    squares = (axes.T @ (whitened.T @ y))[known] ** 2 / spread[known]
    spread = spread[known]
    rest = max(float(y @ y - squares.sum()), 0.0)
    num_rest = len(y) - len(spread)

    def negative(log_variance: float) -> float:
        noise = math.exp(log_variance)
        total = spread + noise
        explained = np.log(total).sum() + (squares / total).sum()
        return float(explained + num_rest * log_variance + rest / noise)

    scale = math.log(max(float(np.mean(y**2)), 1e-300))
    low, high = (scale + math.log(end) for end in NOISE_RANGE)
    grid = np.linspace(low, high, 200)
    best = int(np.argmin([negative(point) for point in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(
        negative, bounds=ends, method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(-float(found.x))


def polynomial_features(x: ArrayLike, degree: int) -> Array:
    """Return the powers 0 to ``degree`` of one input, one column each."""
    return np.vander(np.asarray(x, dtype=float), degree + 1, increasing=True)


def evidence_table(
    x: ArrayLike,
    y: ArrayLike,
    degrees: Iterable[int],
    *,
    prior_precision: float = 1.0,
    noise_precision: float,
    resolution: float,
) -> pd.DataFrame:
    """Compare polynomials by fit, evidence, ELBO and code length.

    Parameters
    ----------
    x, y
        One input and the target.
    degrees
        Degrees to compare.
    prior_precision, noise_precision
        Precisions of every coefficient and of the noise.
    resolution
        Resolution of the target: the distance between two distinguishable values.

    Returns
    -------
    pandas.DataFrame
        One row per degree: the maximum log likelihood and the leave-one-out error of least squares,
        the log evidence, the ELBO of the best factorised Gaussian, and code lengths in bits.

    Examples
    --------
    >>> x, y = [-1.0, -0.5, 0.0, 0.5, 1.0], [-0.9, -0.7, 0.1, 0.6, 0.8]
    >>> table = evidence_table(x, y, range(4), noise_precision=25, resolution=0.1)
    >>> int(table["log_evidence"].idxmax()), int(table["maximum_likelihood"].idxmax())
    (1, 3)
    """
    rows = {}
    for degree in degrees:
        features = polynomial_features(x, degree)
        model = LinearModel(features, np.asarray(y, dtype=float), prior_precision, noise_precision)
        rows[degree] = {
            "maximum_likelihood": model.maximum_likelihood,
            "left_out_rmse": model.left_out_rmse,
            "log_evidence": model.log_evidence,
            "mean_field_elbo": model.mean_field_elbo,
            "evidence_bits": code_bits(model.log_evidence, model, resolution),
            "bits_back_bits": code_bits(model.mean_field_elbo, model, resolution),
            "two_part_bits": two_part_bits(model, resolution),
            "plug_in_bits": prequential_bits(model, resolution, plug_in=True),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("degree")
