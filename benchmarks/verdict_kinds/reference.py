r"""The posterior of a generalised linear model, computed without the zoo.

The mode by Newton's method and the curvature there, for weights with normal priors and a
scale of the noise that is a point. With the hundreds of rows and few weights of the benchmark this
posterior is nearly Gaussian, and exactly so for Gaussian observations with a known noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, Poisson, StudentT

from benchmarks.verdict_kinds.problems import Array

NEWTON_STEPS = 60
#: Largest gradient at a mode; the curvature there is at least that of the prior, one.
GRADIENT = 1e-6
#: Smallest part of a Newton step.
SMALLEST_RATE = 1e-6
#: Degrees of freedom of the likelihood ``student_t`` by default.
DF = 4.0

LogLikelihood = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Log density of observations given outputs (rows, outputs) and the log of a noise scale.
FAMILIES: dict[str, tuple[int, LogLikelihood]] = {
    "gaussian": (1, lambda f, y, s: Normal(f[:, 0], s.exp()).log_prob(y)),
    "student_t": (1, lambda f, y, s: StudentT(DF, f[:, 0], s.exp()).log_prob(y)),
    "heteroscedastic": (2, lambda f, y, s: Normal(f[:, 0], F.softplus(f[:, 1]) + 1e-4).log_prob(y)),
    "bernoulli": (1, lambda f, y, s: Bernoulli(logits=f[:, 0]).log_prob(y)),
    "poisson": (1, lambda f, y, s: Poisson(f[:, 0].exp()).log_prob(y)),
    "categorical": (0, lambda f, y, s: Categorical(logits=f).log_prob(y)),
}
#: Families with a noise scale.
SCALED = ("gaussian", "student_t")


@dataclass(frozen=True)
class Posterior:
    """A Gaussian posterior of the weights (outputs, inputs) in a row, then of the biases."""

    mean: Array
    covariance: Array

    @property
    def sd(self) -> Array:
        """Standard deviations."""
        return np.sqrt(np.diag(self.covariance))


def reference(X: Array, y: Array, family: str, prior_scale: float = 1.0) -> Posterior:
    """Return the posterior of a linear model with normal priors of one scale."""
    outputs, log_likelihood = FAMILIES[family]
    outputs = outputs or int(y.max()) + 1
    x, t = torch.as_tensor(X, dtype=torch.float64), torch.as_tensor(y).double()
    size = outputs * (x.shape[1] + 1)

    def loss(theta: Tensor) -> Tensor:
        weights = theta[: outputs * x.shape[1]].reshape(outputs, -1)
        f = x @ weights.T + theta[outputs * x.shape[1] : size]
        own = log_likelihood(f, t, theta[-1]).sum()
        return 0.5 * (theta[:size] / prior_scale).square().sum() - own

    theta = torch.zeros(size + (family in SCALED), dtype=torch.float64)
    if family in SCALED:  # a noise from which Newton's method finds the mode
        theta[-1] = t.std().log()
    theta = _newton(loss, theta)
    precision = torch.autograd.functional.hessian(loss, theta)[:size, :size]
    return Posterior(theta[:size].numpy(), torch.linalg.inv(precision).numpy())


def _newton(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """Minimise by damped Newton steps; a curvature that is not positive is made so."""
    for _ in range(NEWTON_STEPS):
        gradient = torch.autograd.functional.jacobian(loss, theta)
        if float(gradient.abs().max()) < GRADIENT:
            break
        values, vectors = torch.linalg.eigh(torch.autograd.functional.hessian(loss, theta))
        step = vectors @ ((vectors.T @ gradient) / values.abs().clamp(min=1e-6))
        now, rate = loss(theta), 1.0
        while rate > SMALLEST_RATE and not loss(theta - rate * step) <= now:
            rate /= 2
        theta = theta - rate * step
    return theta


def divergence(mean: Array, covariance: Array, right: Posterior) -> float:
    """Return the KL from one Gaussian to another, in nats."""
    precision = np.linalg.inv(right.covariance)
    shift = right.mean - mean
    trace = float(np.trace(precision @ covariance)) + float(shift @ precision @ shift)
    logs = np.linalg.slogdet(right.covariance)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (trace - len(mean) + float(logs))
