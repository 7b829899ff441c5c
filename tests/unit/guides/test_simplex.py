"""Laws of structure: densities, draws and divergences against values known otherwise."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import kl_divergence

from guides.simplex import (
    Corner,
    Dirichlet,
    GumbelSoftmax,
    completed,
    coordinates_of,
    log_weights,
)

F64 = torch.float64

#: γ, s, temperature and log density on the simplex, from arbitrary-precision arithmetic.
DENSITIES = [
    ([0.2, 0.3, 0.5], [1, 1, 1], 1.0, 0.700138227748799),
    ([0.2, 0.3, 0.5], [0.1, 0.2, 0.7], 0.5, -1.0718223158430449),
    ([0.9, 0.05, 0.05], [1, 2, 3], 2.0, -0.64288245994867032),
    ([0.6, 0.4], [1, 3], 0.2, -1.8980607733412714),
    ([0.25, 0.25, 0.25, 0.25], [1, 1, 1, 1], 5.0, 6.6200732065303561),
]
#: s and temperature of q and of p, and their divergence, by quadrature.
DIVERGENCES = [
    ([3, 1], 0.5, [1, 1], 0.5, 0.19722457733622),
    ([3, 1], 0.5, [1, 1], 1.0, 0.94958807346291),
    ([1, 1], 1.0, [9, 1], 0.2, 2.0294614159017),
]


def gs(s, temperature, cls=GumbelSoftmax):
    return cls(torch.tensor(temperature, dtype=F64), torch.tensor(s, dtype=F64).log())


def terms(q, p, count, seed=0):
    torch.manual_seed(seed)
    u = q.rsample((count,))
    return q.log_prob(u) - p.log_prob(u)


@pytest.mark.parametrize(("weights", "s", "temperature", "expected"), DENSITIES)
def test_density_has_the_reference_values(weights, s, temperature, expected):
    weights = torch.tensor(weights, dtype=F64)
    density = gs(s, temperature).log_prob(coordinates_of(weights.log()))
    # The density of the coordinates is that of the weights times their product.
    assert float(density - weights.log().sum()) == pytest.approx(expected, rel=1e-9)
    scaled = gs([7 * value for value in s], temperature)
    assert float(scaled.log_prob(coordinates_of(weights.log()))) == pytest.approx(float(density))


def test_density_of_coordinates_agrees_with_pyro_on_the_simplex():
    logits = torch.tensor([0.3, -1.0, 0.5, 0.1], dtype=F64)
    temperature = torch.tensor(0.7, dtype=F64)
    weights = torch.softmax(torch.randn(20, 4, dtype=F64), -1)
    theirs = dist.RelaxedOneHotCategorical(temperature, logits=logits).log_prob(weights)
    ours = GumbelSoftmax(temperature, logits).log_prob(coordinates_of(weights.log()))
    torch.testing.assert_close(ours, theirs + weights.log().sum(-1))


def test_density_integrates_to_one():
    for law in (gs([1, 3], 0.2), Dirichlet(torch.tensor([0.4, 2.0], dtype=F64))):
        total, _ = integrate.quad(
            lambda u, law=law: float(law.log_prob(torch.tensor([u], dtype=F64)).exp()),
            -200,
            200,
            points=[-10, 0, 10],
            limit=500,
        )
        assert total == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 10.0])
def test_largest_weight_has_the_probabilities_of_s_at_any_temperature(temperature):
    s = np.array([1.0, 2.0, 5.0])
    torch.manual_seed(0)
    u = gs(s.tolist(), temperature).rsample((40_000,))
    counts = np.bincount(completed(u).argmax(-1).numpy(), minlength=3)
    assert stats.chisquare(counts, 40_000 * s / s.sum()).pvalue > 1e-6


def test_draws_of_two_corners_are_logistic():
    torch.manual_seed(0)
    u = gs([1, 3], 0.4).rsample((5000,)).flatten().numpy()
    law = stats.logistic(loc=math.log(1 / 3) / 0.4, scale=1 / 0.4)
    assert stats.kstest(u, law.cdf).pvalue > 1e-6


@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 0.1])
def test_nothing_underflows_at_low_temperatures_in_single_precision(temperature):
    law = GumbelSoftmax(torch.tensor(temperature), torch.zeros(4))
    other = GumbelSoftmax(torch.tensor(0.5), torch.zeros(4))
    torch.manual_seed(0)
    u = law.rsample((1000,))
    gap = law.log_prob(u) - other.log_prob(u)
    assert torch.isfinite(gap).all()
    assert (log_weights(u).exp().min(-1).values == 0).any()  # on the simplex it would have
    exact = GumbelSoftmax(law.temperature.double(), law.logits.double()).log_prob(u.double())
    torch.testing.assert_close(law.log_prob(u).double(), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("s", "t", "prior_s", "prior_t", "expected"), DIVERGENCES)
def test_one_draw_is_an_unbiased_estimate_of_the_divergence(s, t, prior_s, prior_t, expected):
    values = terms(gs(s, t), gs(prior_s, prior_t), 200_000)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 5 * error, (float(values.mean()), error)


def equal_temperature_divergence(s, prior_s):
    """KL at equal temperatures, from the law of a sum of exponentials of different means.

    With r = s_p / s_q and E_k exponential, it is -sum log r + K (E log sum r_k E_k - digamma(K)),
    and E log sum r_k E_k = sum_k w_k log r_k - Euler's constant, w_k = prod_j r_k / (r_k - r_j).
    """
    r = np.array(prior_s, float) / np.array(s, float)
    weights = [np.prod([a / (a - b) for b in r if b != a]) for a in r]
    mean_log = float(np.sum(weights * np.log(r))) - np.euler_gamma
    harmonic = sum(1 / k for k in range(1, len(r))) - np.euler_gamma
    return -np.log(r).sum() + len(r) * (mean_log - harmonic)


def test_estimate_is_unbiased_with_three_corners():
    s, prior_s = [5.0, 2.0, 1.0], [1.0, 1.0, 1.0]
    expected = equal_temperature_divergence(s, prior_s)
    values = terms(gs(s, 0.5), gs(prior_s, 0.5), 200_000)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 5 * error


@pytest.mark.parametrize("temperature", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("favourite", [0.0, 3.0, 6.0])
def test_spread_of_the_estimate_is_small(temperature, favourite):
    """At the default prior it is below 3 nats; measured: 2.6 at most, 1.5 at equal temperatures."""
    q = GumbelSoftmax(
        torch.tensor(temperature, dtype=F64), torch.tensor([favourite, 0.0, 0.0], dtype=F64)
    )
    spread = float(terms(q, gs([1, 1, 1], 0.5), 20_000).std())
    assert spread < 3
    if temperature == 0.5:
        assert spread < 1.6


def test_estimate_has_no_spread_when_the_posterior_is_the_prior():
    assert float(terms(gs([1, 2, 3], 0.4), gs([2, 4, 6], 0.4), 100).abs().max()) < 1e-12


def test_gradient_of_the_estimate_is_unbiased():
    base = torch.tensor([3.0, 1.0], dtype=F64).log()
    rows = []
    torch.manual_seed(0)
    for _ in range(20):
        logits = base.clone().requires_grad_()
        q = GumbelSoftmax(torch.full((2000,), 0.5, dtype=F64), logits.expand(2000, 2))
        u = q.rsample()
        total = (q.log_prob(u) - gs([1, 1], 1.0).log_prob(u)).mean()
        rows.append(torch.autograd.grad(total, logits)[0])
    rows = torch.stack(rows)

    def exact(shift):
        law = stats.logistic(loc=(math.log(3) + shift) / 0.5, scale=2.0)
        prior = stats.logistic(loc=0, scale=1.0)
        return integrate.quad(
            lambda u: law.pdf(u) * (law.logpdf(u) - prior.logpdf(u)), -150, 150, limit=500
        )[0]

    slope = (exact(1e-4) - exact(-1e-4)) / 2e-4
    error = rows[:, 0].std() / math.sqrt(len(rows))
    assert abs(float(rows[:, 0].mean()) - slope) < 5 * float(error)
    torch.testing.assert_close(rows[:, 0], -rows[:, 1])


def test_divergence_of_gumbel_softmax_laws_has_no_closed_form():
    with pytest.raises(NotImplementedError):
        kl_divergence(gs([1, 2], 0.5), gs([1, 1], 0.5))
    with pytest.raises(NotImplementedError):
        kl_divergence(gs([1, 2], 0.5), Dirichlet(torch.ones(2, dtype=F64)))


def test_divergence_of_corners_is_the_discrete_one():
    q, p = gs([3, 1, 1], 0.5, Corner), gs([1, 1, 2], 0.1, Corner)
    expected = 0.6 * math.log(0.6 / 0.25) + 0.2 * math.log(0.2 / 0.25) + 0.2 * math.log(0.2 / 0.5)
    assert float(kl_divergence(q, p)) == pytest.approx(expected, rel=1e-12)


def test_divergence_of_dirichlet_laws_agrees_with_draws():
    q = Dirichlet(torch.tensor([0.3, 2.0, 1.0], dtype=F64))
    p = Dirichlet(torch.tensor([1.0, 1.0, 1.0], dtype=F64))
    values = terms(q, p, 100_000)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - float(kl_divergence(q, p))) < 5 * error


def test_dirichlet_draws_have_its_moments_at_small_concentrations():
    concentration = torch.tensor([0.02, 0.05, 0.03], dtype=F64)
    torch.manual_seed(0)
    u = Dirichlet(concentration).rsample((40_000,))
    assert torch.isfinite(u).all()
    weights = log_weights(u).exp()
    error = weights.std(0) / math.sqrt(len(weights))
    mean = concentration / concentration.sum()
    assert ((weights.mean(0) - mean).abs() < 5 * error).all()


def test_gradients_of_dirichlet_draws_are_those_of_their_mean():
    concentration = torch.tensor([0.7, 1.5], dtype=F64).requires_grad_()
    torch.manual_seed(0)
    rows = []
    for _ in range(20):
        weights = log_weights(Dirichlet(concentration.expand(4000, 2)).rsample()).exp()
        rows.append(torch.autograd.grad(weights[:, 0].mean(), concentration)[0])
    rows = torch.stack(rows)
    error = rows.std(0) / math.sqrt(len(rows))
    total = float(concentration.detach().sum())
    exact = torch.tensor([1.5 / total**2, -0.7 / total**2], dtype=F64)
    assert ((rows.mean(0) - exact).abs() < 5 * error).all()


def test_shapes_and_expansion():
    law = GumbelSoftmax(torch.tensor(0.5), torch.zeros(3))
    assert law.event_shape == (2,)
    assert law.expand([4]).to_event(1).event_shape == (4, 2)
    assert type(Corner(torch.tensor(0.5), torch.zeros(3)).expand([2])) is Corner
    assert Dirichlet(torch.ones(5, 3)).batch_shape == (5,)
    assert Dirichlet(torch.ones(3)).expand([2]).rsample((7,)).shape == (7, 2, 2)
