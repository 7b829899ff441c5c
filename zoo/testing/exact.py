"""Checks against an exact answer, or against stock Pyro."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.poutine as poutine
import torch
from pyro.distributions import Delta
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from guides.joint import JOINT_SITE
from guides.point import Point
from zoo.fit.build import create
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective, site_divergences
from zoo.likelihoods import parse_likelihood
from zoo.registry import Entry, Recipe
from zoo.testing.problems import small_problem

#: Draws of a posterior without quantiles.
NUM_SAMPLES = 20_000


def agrees_with_stock_elbo(entry: Entry) -> str:
    """Loss and gradients of both estimators have the expectation of Pyro's TraceMeanField_ELBO."""
    model, guide, x, y = small_problem(entry)
    stock = TraceMeanField_ELBO()
    parameters = [p for part in (model, guide) for p in part.parameters() if p.requires_grad]

    def draws(loss: Callable[[], Tensor], seed: int, count: int = 200) -> Tensor:
        torch.manual_seed(seed)
        rows = []
        for _ in range(count):
            value = loss()
            gradients = torch.autograd.grad(value, parameters)
            rows.append(torch.cat([value.detach()[None], *(g.flatten() for g in gradients)]))
        return torch.stack(rows)

    theirs = draws(lambda: stock.differentiable_loss(model, guide, x, y), 1)
    scores = {}
    for local in (False, True):
        objective = Objective(model, guide, local=local)
        ours = draws(lambda objective=objective: objective(x, y), 2)  # type: ignore[misc]
        error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
        gap = (ours.mean(0) - theirs.mean(0)).abs()
        smallest = 1e-9 * theirs.abs().mean(0).max()
        scores["local" if local else "weights"] = float((gap / error.clamp(min=smallest)).max())
    worst = max(scores.values())
    assert worst < 5, f"loss or gradients differ from stock Pyro by {worst:.1f} standard errors"
    return ", ".join(f"{name}: largest z-score {score:.1f}" for name, score in scores.items())


def recovers_linear_regression(entry: Entry) -> str:
    """On a conjugate regression, means and standard deviations are those of the exact optimum.

    With prior N(0, 1) and known noise the posterior precision is A = I + X'X / s^2; the best
    factorised posterior has the exact means and the variances 1 / A_ii, the exact one has those of
    the inverse of A.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 8, generator=generator, dtype=torch.float64)
    truth = torch.linspace(-2, 2, 8, dtype=torch.float64)
    y = x @ truth + 0.5 * torch.randn(100, generator=generator, dtype=torch.float64)
    likelihood = parse_likelihood("gaussian(noise=0.5)").double()
    model = create(
        entry.name, _Linear(8), likelihood=likelihood, num_data=100, priors={"*": "Normal(0, 1)"}
    )
    guide = model.guide(init_scale=0.05)
    # A standard deviation to 3% takes thousands of draws, which is why they are vectorised.
    recipe = Recipe(num_steps=1000, batch_size=100, lr=0.02, schedule="cosine", kl_warmup=0.0)
    svi = SVI(
        model, guide, x, y, recipe=recipe, seed=0, num_particles=128, vectorize_particles=True
    )
    svi.run(progress_bar=False)
    posterior: Any = guide["weight"].distributions()["weight"]
    precision = torch.eye(8, dtype=torch.float64) + x.T @ x / 0.25
    inverse_variance = precision.diagonal()
    if entry.exactness == "exact":
        posterior = guide.distributions()[JOINT_SITE]
        inverse_variance = 1 / torch.linalg.inv(precision).diagonal()
    loc, scale = posterior.mean.detach(), posterior.stddev.detach()
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    mean_gap = float(((loc - mean) / mean).abs().max())
    scale_gap = float((scale * inverse_variance.sqrt() - 1).abs().max())
    detail = f"means within {mean_gap:.2%}, standard deviations within {scale_gap:.2%}"
    assert mean_gap < 0.01, detail
    if entry.exactness in ("exact", "mean_field"):
        assert scale_gap < 0.03, detail
    return detail


class _Linear(nn.Module):
    """A linear model that also accepts a batch of weights, so that many draws are one call."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(-1, keepdim=True)


@torch.no_grad()
def kl_is_exact(entry: Entry) -> str:
    """The loss contains the KL of all layers, with weight one.

    The loss minus the negative log-likelihood of the same draw is compared with one-dimensional
    integrals of log q - log p; for sites without quantiles with an average over many draws, with
    a tolerance of five standard errors.
    """
    model, guide, x, y = small_problem(entry)
    torch.manual_seed(5)
    loss = float(Objective(model, guide)(x, y))
    torch.manual_seed(5)
    guide_trace = poutine.trace(guide).get_trace()
    trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(x, y)
    trace.compute_log_prob()
    in_loss = loss + float(trace.nodes["y"]["log_prob_sum"])
    parts = [
        _integrated_divergence(posterior, trace.nodes[site]["fn"])
        for site, posterior in guide.distributions().items()
    ]
    exact, error = sum(value for value, _ in parts), math.hypot(*(error for _, error in parts))
    ratio = in_loss / exact
    analytic = all(a for _, a in site_divergences(model.sample_slots, guide).values())
    assert analytic == entry.analytic_kl, f"analytic_kl should be {analytic}"
    if entry.analytic_kl:
        assert abs(ratio - 1) < 5e-4 + 5 * error / abs(exact), (
            f"KL in the loss / exact KL = {ratio:.4f}"
        )
    return f"KL in the loss / exact KL = {ratio:.3f}"


def _integrated_divergence(posterior: Any, prior: Any, nodes: int = 120) -> tuple[float, float]:
    """Integrate log q - log p over q, element by element, by Gauss-Hermite quadrature.

    The nodes of a standard Normal are mapped to the quantiles of q. Returns the integral and its
    standard error, which is zero unless the integral is an average over draws.
    """
    q, p = _elementwise(posterior), _elementwise(prior)
    if isinstance(q, Point):
        return float((posterior.log_density - prior.log_prob(posterior.v)).sum()), 0.0
    if isinstance(q, Delta):
        return float(-prior.log_prob(posterior.v).sum()), 0.0
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    shape = (-1,) + (1,) * len(q.batch_shape)
    e = torch.as_tensor(points, dtype=torch.float64).reshape(shape)
    w = torch.as_tensor(weights / math.sqrt(2 * math.pi), dtype=torch.float64).reshape(shape)
    try:
        value = _quantiles(q, e)
    except NotImplementedError:
        values = posterior.sample((NUM_SAMPLES,))
        terms = posterior.log_prob(values) - prior.log_prob(values)
        return float(terms.mean()), float(terms.std()) / math.sqrt(NUM_SAMPLES)
    return float((w * (q.log_prob(value) - p.log_prob(value))).sum()), 0.0


def _quantiles(q: Any, e: Tensor) -> Tensor:
    """Return the quantiles of a distribution at the probabilities of a standard Normal at e."""
    if isinstance(q, torch.distributions.Normal):
        return q.loc + q.scale * e
    if isinstance(q, torch.distributions.TransformedDistribution):
        value = _quantiles(q.base_dist, e)
        for transform in q.transforms:
            value = transform(value)
        return value
    quantiles: Tensor = q.icdf(torch.special.ndtr(e).expand(len(e), *q.batch_shape))
    return quantiles


def _elementwise(distribution: Any) -> Any:
    while isinstance(distribution, torch.distributions.Independent):
        distribution = distribution.base_dist
    return distribution
