import math

import pytest
import torch
from torch.distributions import kl_divergence

from guides.variational_dropout import VariationalDropoutGuide
from zoo.distributions import LogUniform

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")

# log alpha, and the approximate KL; computed with 30 digits.
REFERENCE = [
    (-8.0, 4.6358994803340266),
    (-5.0, 3.1366839183907356),
    (-3.51, 2.3838566220406032),
    (-2.0, 1.5405327412383669),
    (-1.0, 0.91387228501593723),
    (0.0, 0.43123895099030883),
    (1.0, 0.17796971953858742),
    (3.0, 0.0254200433123648),
]


def build(value, rate_shape, **options):
    defaults = {"rate": 0.25, "max_rate": 1.0, "learn_mean": False, "learn_rate": True}
    return VariationalDropoutGuide(
        "s", value, rate_shape=torch.Size(rate_shape), **(defaults | options)
    )


@pytest.mark.parametrize(("log_rate", "kl"), REFERENCE)
@pytest.mark.parametrize("mean", [1.0, -0.3, 20.0])
def test_divergence_depends_on_the_rate_alone_and_has_the_reference_values(log_rate, kl, mean):
    rate = math.exp(log_rate)
    guide = build(torch.full((2,), mean), (1,), rate=rate, max_rate=100.0, learn_mean=True)
    q = guide.distributions()["s"].base_dist
    divergence = kl_divergence(q, LogUniform().expand([2]))
    torch.testing.assert_close(divergence.detach(), torch.full((2,), kl), rtol=1e-9, atol=1e-12)
    (slope,) = torch.autograd.grad(divergence.sum(), [guide["s"].loc])
    assert slope.abs().max() < 1e-12 * kl / abs(mean)


@pytest.mark.parametrize("rate_shape", [(1, 1), (1, 4), (3, 4)])
def test_rates_are_shared_as_asked(rate_shape):
    guide = build(torch.randn(3, 4), rate_shape, learn_mean=True)
    sizes = {name: tuple(p.shape) for name, p in guide["s"].named_parameters()}
    assert sizes == {"loc": (3, 4), "logit": rate_shape}
    scale = guide.distributions()["s"].stddev
    torch.testing.assert_close(scale, 0.5 * guide["s"].loc.abs())
    torch.testing.assert_close(guide.dropout_rates(), torch.full(rate_shape, 0.2))


@torch.no_grad()
def test_rate_stays_below_its_bound():
    guide = build(torch.ones(2), (1,), max_rate=1.0)
    guide["s"].logit.fill_(50.0)
    assert float(guide.distributions()["s"].stddev.max()) <= 1.0
    assert float(guide.dropout_rates()) <= 0.5


def test_noise_on_an_activation_has_mean_one_and_only_a_rate_to_learn():
    guide = build(torch.ones(5), (1,))
    assert [name for name, _ in guide.named_parameters()] == ["w.logit"]
    assert torch.equal(guide.medians()["s"], torch.ones(5))


def test_fixed_rate_has_nothing_to_learn_and_moves_along():
    guide = build(torch.ones(5), (1,), learn_rate=False)
    assert not list(guide.parameters())
    assert guide.float().some_tensor.dtype == torch.float32
    assert guide.draw(3)["s"].dtype == torch.float32
    torch.testing.assert_close(guide.dropout_rates(), torch.tensor([0.2], dtype=torch.float32))


def test_weight_of_zero_has_finite_gradients():
    guide = build(torch.zeros(3), (1,), learn_mean=True)
    q = guide.distributions()["s"].base_dist
    (kl_divergence(q, LogUniform().expand([3])).sum() + guide.sample_sites()["s"].sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters())


def test_draws_have_the_moments_of_gaussian_dropout():
    guide = build(torch.full((4,), 2.0), (1,), rate=0.25)
    draws = guide.draw(20_000)["s"].detach()
    assert ((draws.mean(0) - 2.0).abs() < 5 * 1.0 / math.sqrt(20_000)).all()
    assert ((draws.var(0) - 1.0).abs() < 5 * math.sqrt(2 / 20_000)).all()
