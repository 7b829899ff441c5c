"""Lazy samples have the law of sampled weights, and nothing is drawn twice."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from guides.lazy import LazyReuseError, LazySample, LocalReparameterization, is_lazy
from guides.log_scale_normal import LogScaleNormal, summed_kl

DRAWS = 20_000


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def lazy(*shape, scale=0.5, name="w"):
    return LazySample(dist.Normal(torch.randn(shape), torch.full(shape, scale)), name)


def assert_moments(draws, mean, variance):
    """Compare mean and variance over draws within five standard errors."""
    error = (variance / len(draws)).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * error).all()
    assert ((draws.var(0) / variance - 1).abs() < 5 * (2 / len(draws)) ** 0.5).all()


def test_linear_has_the_mean_and_variance_of_sampled_weights():
    x = torch.randn(3, 4)
    weight, bias = lazy(2, 4), lazy(2, scale=0.3)
    loc, bias_loc = weight.normal.loc, bias.normal.loc
    draws = torch.stack(
        [
            F.linear(x, LazySample(weight.normal, "w"), LazySample(bias.normal, "b"))
            for _ in range(DRAWS)
        ]
    )
    mean = x @ loc.T + bias_loc
    variance = (x**2) @ torch.full((4, 2), 0.25) + 0.09
    assert_moments(draws, mean, variance)


@pytest.mark.parametrize(("function", "spatial"), [(F.conv1d, 1), (F.conv2d, 2), (F.conv3d, 3)])
def test_convolution_has_the_marginals_of_sampled_weights(function, spatial):
    x = torch.randn(2, 3, *([4] * spatial))
    weight = lazy(2, 3, *([2] * spatial))
    draws = torch.stack([function(x, LazySample(weight.normal, "w")) for _ in range(4000)])
    mean = function(x, weight.normal.loc)
    variance = function(x**2, weight.normal.variance)
    assert_moments(draws, mean, variance)


def test_zero_variance_is_the_ordinary_layer():
    x = torch.randn(3, 4)
    weight = lazy(2, 4, scale=1e-12)
    torch.testing.assert_close(F.linear(x, weight), x @ weight.normal.loc.T, atol=1e-7, rtol=0)


def test_gradients_are_those_of_the_composed_operations():
    x = torch.randn(5, 4, requires_grad=True)
    loc, log_scale = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    bias = torch.randn(3, requires_grad=True)

    def run(inputs):
        return F.linear(inputs, LazySample(LogScaleNormal(loc, log_scale), "w"), bias)

    torch.manual_seed(1)
    fused = run(x)
    torch.manual_seed(1)
    noise = torch.randn(5, 3)
    variance = F.linear(x * x, (2 * log_scale).exp())
    composed = F.linear(x, loc, bias) + variance.sqrt() * noise
    torch.testing.assert_close(fused, composed)
    cotangent = torch.randn(5, 3)
    for a, b in zip(
        torch.autograd.grad(fused, (x, loc, log_scale, bias), cotangent),
        torch.autograd.grad(composed, (x, loc, log_scale, bias), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_product_with_a_tensor_stays_lazy():
    weight, scales = lazy(2, 4), torch.rand(1, 4)
    product = weight * scales
    assert is_lazy(product)
    loc, variance = product.moments()
    torch.testing.assert_close(loc, weight.normal.loc * scales)
    torch.testing.assert_close(variance, weight.normal.variance * scales**2)
    F.linear(torch.randn(3, 4), product)
    with pytest.raises(LazyReuseError, match="'w' was integrated out by 'linear'"):
        weight.draw()


def test_a_product_that_is_drawn_is_the_draw_of_its_parent_times_the_tensor():
    weight, scales = lazy(2, 4), torch.rand(1, 4) + 2
    product = weight * scales
    drawn = product + 0
    torch.testing.assert_close(drawn, weight.draw() * scales)
    torch.testing.assert_close(product.draw(), drawn)


def test_product_with_rows_draws_once_per_row():
    z = lazy(4)
    rows = torch.ones(DRAWS, 4) * z
    assert_moments(rows, z.normal.loc, z.normal.variance)


def test_other_operations_draw_one_value():
    weight = lazy(2, 4)
    first, second = weight.sum(), weight.sum()
    assert first == second
    assert torch.equal(weight + 0, weight.draw())
    assert F.linear(torch.eye(4), weight).equal(weight.draw().T)


def test_metadata_needs_no_draw():
    weight = lazy(2, 4)
    assert (weight.shape, weight.dim(), weight.numel()) == ((2, 4), 2, 8)
    assert weight.dtype == torch.float64
    assert weight.drawn is None
    assert "LazySample('w'" in repr(weight)


def test_second_use_is_an_error_that_says_how_to_opt_out():
    weight = lazy(4, 4)
    x = F.linear(torch.randn(3, 4), weight)
    with pytest.raises(LazyReuseError, match="local_reparameterization"):
        F.linear(x, weight)


def test_handler_makes_normal_sites_lazy_and_leaves_the_rest():
    def guide():
        a = pyro.sample("a", dist.Normal(torch.zeros(2, 2), 1).to_event(2))
        b = pyro.sample("b", dist.LogNormal(torch.zeros(2), 1).to_event(1))
        c = pyro.sample("c", dist.Normal(0.0, 1.0))
        out = {"local_reparameterization": False}
        d = pyro.sample("d", dist.Normal(torch.zeros(2), 1).to_event(1), infer=out)
        return a, b, c, d

    with LocalReparameterization():
        assert [is_lazy(value) for value in guide()] == [True, False, False, False]
    assert not any(map(is_lazy, guide()))


def test_modules_that_know_nothing_of_laziness_work():
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    values = {name: lazy(*p.shape, name=name) for name, p in attention.named_parameters()}
    x = torch.randn(2, 3, 4)
    output, _ = torch.func.functional_call(attention, values, (x, x, x))
    assert output.shape == (2, 3, 4)
    assert not is_lazy(output)


def test_log_scale_normal_is_the_same_law():
    loc, log_scale = torch.randn(3), torch.randn(3)
    ours, theirs = LogScaleNormal(loc, log_scale), dist.Normal(loc, log_scale.exp())
    value = torch.randn(3)
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.variance, theirs.variance)
    torch.testing.assert_close(ours.icdf(torch.tensor(0.3)), theirs.icdf(torch.tensor(0.3)))
    prior = dist.Normal(0.5, 2.0)
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(kl(ours, prior), kl(theirs, prior))
    torch.manual_seed(0)
    a = ours.expand([4, 3]).rsample()
    torch.manual_seed(0)
    torch.testing.assert_close(a, theirs.expand([4, 3]).rsample())


def test_summed_divergence_has_the_value_and_gradients_of_the_elements():
    parameters = [torch.randn(3, 4).requires_grad_(), torch.randn(3, 4).requires_grad_()]
    prior = [torch.tensor(0.3).requires_grad_(), torch.tensor(1.7).requires_grad_()]

    def posterior():
        return LogScaleNormal(*parameters).to_event(2)

    p = dist.Normal(*prior).expand([3, 4]).to_event(2)
    fused = summed_kl(posterior(), p)
    plain = torch.distributions.kl_divergence(
        dist.Normal(parameters[0], parameters[1].exp()).to_event(2), p
    )
    torch.testing.assert_close(fused, plain)
    for a, b in zip(
        torch.autograd.grad(3 * fused, [*parameters, *prior]),
        torch.autograd.grad(3 * plain, [*parameters, *prior]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_summed_divergence_leaves_other_pairs_alone():
    q = LogScaleNormal(torch.zeros(3), torch.zeros(3)).to_event(1)
    assert summed_kl(q, dist.Laplace(torch.zeros(3), 1).to_event(1)) is None
    assert summed_kl(q, dist.Normal(torch.zeros(3), torch.rand(3)).to_event(1)) is None
    assert summed_kl(dist.Normal(torch.zeros(3), 1).to_event(1), q) is None
