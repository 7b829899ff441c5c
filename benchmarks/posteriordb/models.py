"""The models of posteriordb as Pyro programs, each after its Stan program.

A flat prior is an `ImproperUniform`, as a parameter without a statement is in Stan. Regressions are
written so that they also run with many posterior draws at once, along a plate at dimension -2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

Values = Mapping[str, np.ndarray]
Data = Mapping[str, Any]


def eight_schools_noncentred(scale: Tensor, y: Tensor) -> None:
    """Effects of coaching in eight schools, with standardised effects."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_tensor(5.0)))
    with pyro.plate("schools", len(y)):
        z = pyro.sample("z", dist.Normal(y.new_zeros(()), 1.0))
        pyro.sample("y", dist.Normal(mu + tau * z, scale), obs=y)


def eight_schools_centred(scale: Tensor, y: Tensor) -> None:
    """Write the same posterior with the effects themselves as latent variables."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_tensor(5.0)))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, scale), obs=y)


def _flat(name: str, size: int) -> Tensor:
    value: Tensor = pyro.sample(name, dist.ImproperUniform(constraints.real, (), (size,)))
    return value


def _linear_response(
    X: Tensor, y: Tensor, beta: Tensor, sigma: Tensor, intercept: Tensor | float = 0.0
) -> None:
    mean = beta @ X.T
    if beta.dim() > 1:  # many draws: the dimension of the plate is still there, with size one
        mean = mean.squeeze(-2)
    with pyro.plate("obs_id", len(y)):
        pyro.sample("y", dist.Normal(intercept + mean, sigma), obs=y)


def kidscore_interaction(X: Tensor, y: Tensor) -> None:
    """Test scores of children by the mother's IQ and schooling."""
    beta = _flat("beta", X.shape[1])
    sigma = pyro.sample("sigma", dist.HalfCauchy(X.new_tensor(2.5)))
    _linear_response(X, y, beta, sigma)


def blr(X: Tensor, y: Tensor) -> None:
    """Bayesian linear regression."""
    p = X.shape[1]
    beta = pyro.sample("beta", dist.Normal(X.new_zeros(p), 10.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(X.new_tensor(10.0)))
    _linear_response(X, y, beta, sigma)


def nes(X: Tensor, y: Tensor) -> None:
    """Party identification in the American National Election Study."""
    beta = _flat("beta", X.shape[1])
    sigma = pyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    _linear_response(X, y, beta, sigma)


def diamonds(X: Tensor, y: Tensor) -> None:
    """Log prices of diamonds; the columns are centred."""
    p = X.shape[1]
    b = pyro.sample("b", dist.Normal(X.new_zeros(p), 1.0).to_event(1))
    intercept = pyro.sample("Intercept", dist.StudentT(3.0, X.new_tensor(8.0), 10.0))
    # The density of a folded distribution is twice that of its half: sampling does not see it.
    positive = dist.FoldedDistribution(dist.StudentT(3.0, X.new_tensor(0.0), 10.0))
    sigma = pyro.sample("sigma", positive)
    _linear_response(X, y, b, sigma, intercept)


def gp_poisson(x: Tensor, k: Tensor) -> None:
    """Draw counts whose log rate is a Gaussian process."""
    rho = pyro.sample("rho", dist.Gamma(x.new_tensor(25.0), x.new_tensor(4.0)))
    alpha = pyro.sample("alpha", dist.HalfNormal(x.new_tensor(2.0)))
    rho, alpha = rho[..., None, None], alpha[..., None, None]
    covariance = alpha**2 * torch.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)
    factor = torch.linalg.cholesky(covariance + 1e-10 * torch.eye(len(x), dtype=x.dtype))
    f = pyro.sample("f", dist.MultivariateNormal(x.new_zeros(len(x)), scale_tril=factor))
    pyro.sample("k", dist.Poisson(f.exp()).to_event(1), obs=k)


def _school_data(data: Data) -> tuple[Tensor, Tensor]:
    return _double(data["sigma"]), _double(data["y"])


def _kidiq_data(data: Data) -> tuple[Tensor, Tensor]:
    school, iq = _double(data["mom_hs"]), _double(data["mom_iq"])
    columns = [torch.ones_like(iq), school, iq, school * iq]
    return torch.stack(columns, 1), _double(data["kid_score"])


def _blr_data(data: Data) -> tuple[Tensor, Tensor]:
    return _double(data["X"]), _double(data["y"])


def _nes_data(data: Data) -> tuple[Tensor, Tensor]:
    named = {name: _double(data[name]) for name in ("real_ideo", "race_adj", "educ1", "gender")}
    age = _double(data["age_discrete"])
    columns = [
        torch.ones_like(age),
        named["real_ideo"],
        named["race_adj"],
        *((age == level).double() for level in (2, 3, 4)),
        named["educ1"],
        named["gender"],
        _double(data["income"]),
    ]
    return torch.stack(columns, 1), _double(data["partyid7"])


def _diamonds_data(data: Data) -> tuple[Tensor, Tensor]:
    X = _double(data["X"])[:, 1:]
    return X - X.mean(0), _double(data["Y"])


def _gp_data(data: Data) -> tuple[Tensor, Tensor]:
    return _double(data["x"]), _double(data["k"])


def _double(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _effects(values: Values) -> Values:
    theta = values["mu"][..., None] + values["tau"][..., None] * values["z"]
    return {"theta": theta, "mu": values["mu"], "tau": values["tau"]}


def _as_they_are(values: Values) -> Values:
    return values


def _least_squares(X: Tensor, y: Tensor) -> dict[str, Tensor]:
    beta = torch.linalg.lstsq(X, y[:, None]).solution[:, 0]
    return {"beta": beta, "sigma": (y - X @ beta).std()}


def _shrunken_least_squares(X: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the mode given the noise: with columns this correlated, the prior of b matters."""
    sigma = _least_squares(X, y - y.mean())["sigma"]
    precision = X.T @ X / sigma**2 + torch.eye(X.shape[1], dtype=X.dtype)
    b = torch.linalg.solve(precision, X.T @ (y - y.mean()) / sigma**2)
    return {"b": b, "Intercept": y.mean(), "sigma": sigma}


def _no_start(X: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Posterior:
    """A model with its data, and the reference draws it belongs to.

    Attributes
    ----------
    name
        Row of the table.
    reference
        Name in posteriordb.
    model
        The Pyro program, called with what ``arguments`` makes of the data.
    report
        Makes the parameters of the reference from draws by site, shape ``(chains, draws, ...)``.
    start
        Values at which a guide starts, by site. For a regression with covariates of very different
        sizes the way from zero to the data is long, and is not what is measured.
    """

    name: str
    reference: str
    model: Callable[[Tensor, Tensor], None]
    arguments: Callable[[Data], tuple[Tensor, Tensor]]
    report: Callable[[Values], Values] = _as_they_are
    start: Callable[[Tensor, Tensor], dict[str, Tensor]] = _no_start


_SCHOOLS = "eight_schools-eight_schools_noncentered"

POSTERIORS = (
    Posterior("schools_noncentred", _SCHOOLS, eight_schools_noncentred, _school_data, _effects),
    Posterior("schools_centred", _SCHOOLS, eight_schools_centred, _school_data),
    Posterior(
        "kidiq",
        "kidiq-kidscore_interaction",
        kidscore_interaction,
        _kidiq_data,
        start=_least_squares,
    ),
    Posterior("sblrc", "sblrc-blr", blr, _blr_data, start=_least_squares),
    Posterior("nes1980", "nes1980-nes", nes, _nes_data, start=_least_squares),
    Posterior(
        "diamonds", "diamonds-diamonds", diamonds, _diamonds_data, start=_shrunken_least_squares
    ),
    Posterior("gp_pois_regr", "gp_pois_regr-gp_pois_regr", gp_poisson, _gp_data),
)
