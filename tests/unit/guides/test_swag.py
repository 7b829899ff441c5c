"""SWAG: moments of snapshots, the Gaussian made of them, and what is stored."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch

from guides.mean_field import MeanField
from guides.swag import SwagGuide

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")


def model():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1))
    s = pyro.sample("s", dist.LogNormal(torch.tensor(0.0), torch.tensor(1.0)))
    return w, s


def swag(rank=3):
    init = {"w": torch.tensor([0.3, -0.2]), "s": torch.tensor(1.5)}
    return SwagGuide({"model": MeanField(model, init=init, init_scale=1e-3)}, rank=rank)


def path(steps=8):
    """Return points of a training, unconstrained."""
    return 5 + torch.randn(steps, 3) @ torch.tensor([[1.0, 0.5, 0], [0, 1, -0.7], [0, 0, 0.3]])


def follow(guide, points, every=1):
    for point in points:
        guide.set_mode(point)
        guide.collect(every)
    return guide


def by_hand(snapshots, rank):
    """Return mean and covariance of the published formulas, from all snapshots at once."""
    count = len(snapshots)
    running = torch.stack([snapshots[: n + 1].mean(0) for n in range(count)])
    columns = (snapshots - running)[-rank:]
    diagonal = snapshots.square().mean(0) - snapshots.mean(0).square()
    low_rank = columns.T @ columns / (len(columns) - 1)
    return snapshots.mean(0), 0.5 * (diagonal.diag() + low_rank)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_moments_are_those_of_the_snapshots(count):
    """With fewer snapshots than columns, as many, and more."""
    points = path(count)
    guide = follow(swag(rank=3), points)
    mean, covariance = by_hand(points, rank=3)
    torch.testing.assert_close(guide.mean, mean)
    torch.testing.assert_close(guide.joint().covariance_matrix, covariance)


def test_only_some_updates_are_snapshots():
    points = path(9)
    guide, by_twos = follow(swag(), points, every=2), follow(swag(), points[1::2])
    assert int(guide.num_snapshots) == 4
    for name in ("mean", "variance", "deviations"):
        torch.testing.assert_close(guide.get_buffer(name), by_twos.get_buffer(name))


def test_variances_keep_their_digits_far_from_zero():
    """The difference of two moments would have none left in single precision."""
    generator = torch.Generator().manual_seed(0)
    points = 100 + 1e-4 * torch.randn(50, 3, generator=generator)
    guide = swag().float()
    exact = points.float().double().var(0, correction=0)
    # Points are known to 4e-6; what rounding them does is in the reference too.
    follow(guide, points.float())
    torch.testing.assert_close(guide.variance.double(), exact, rtol=0.05, atol=0)


def test_draws_have_the_published_covariance():
    points = path()
    guide = follow(swag(), points)
    guide.finish()
    mean, covariance = by_hand(points, rank=3)
    with torch.no_grad():
        draws = guide.draw(200_000)
    flat = torch.cat([draws["w"], draws["s"].log().unsqueeze(-1)], dim=1)
    variances = covariance.diagonal()
    error = 5 * torch.sqrt((covariance.square() + variances.outer(variances)) / 200_000)
    assert ((flat.T.cov() - covariance).abs() < error).all()
    assert ((flat.mean(0) - mean).abs() < 5 * (variances / 200_000).sqrt()).all()
    marginal = [site.log_scale.exp().reshape(-1) for site in guide.sites().values()]
    torch.testing.assert_close(torch.cat(marginal), variances.sqrt())
    torch.testing.assert_close(guide.medians()["s"], mean[2].exp())


def test_log_density_is_that_of_the_normal_with_the_jacobian():
    points = path()
    guide = follow(swag(), points)
    guide.finish()
    mean, covariance = by_hand(points, rank=3)
    with torch.no_grad(), pyro.validation_enabled(False):  # its checks look at values
        values = guide.draw(7)
        ours = torch.vmap(guide.log_density)(values)
        flat = torch.cat([values["w"], values["s"].log().unsqueeze(-1)], dim=1)
        normal = torch.distributions.MultivariateNormal(mean, covariance)
        torch.testing.assert_close(ours, normal.log_prob(flat) - flat[:, 2])
        trace = poutine.trace(guide.sample_sites).get_trace()
        own = guide.log_density({name: trace.nodes[name]["value"] for name in ("w", "s")})
        torch.testing.assert_close(torch.as_tensor(trace.log_prob_sum()), own)


def test_log_density_of_many_unknowns_is_that_of_torch():
    def wide():
        pyro.sample("w", dist.Normal(torch.zeros(40), torch.ones(40)).to_event(1))

    guide = SwagGuide({"model": MeanField(wide, init_scale=1e-3)}, rank=5)
    points = torch.randn(12, 40)
    follow(guide, points)
    guide.finish()
    running = torch.stack([points[: n + 1].mean(0) for n in range(12)])
    factor = (points - running)[-5:].T / (2 * 4) ** 0.5
    diagonal = points.var(0, correction=0) / 2
    normal = torch.distributions.LowRankMultivariateNormal(points.mean(0), factor, diagonal)
    value = torch.randn(40)
    torch.testing.assert_close(guide.log_density({"w": value}), normal.log_prob(value))


def test_before_the_end_and_with_one_snapshot_it_is_a_point():
    guide = follow(swag(), path(5))
    draws = guide.draw(3)
    assert all(torch.equal(value[0], value[2]) for value in draws.values())
    alone = follow(swag(), path(1))
    alone.finish()
    assert not alone.is_joint
    assert alone.metrics() == {"num_snapshots": 1.0}


def test_an_unknown_that_never_moves_has_a_density():
    points = path()
    points[:, 1] = 2.0
    guide = follow(swag(), points)
    guide.finish()
    values = guide.draw(4)
    assert torch.allclose(values["w"][:, 1], torch.tensor(2.0))
    assert torch.isfinite(guide.log_density({name: value[0] for name, value in values.items()}))


def test_its_state_holds_the_snapshots_and_whether_they_are_the_posterior():
    guide, other = follow(swag(), path()), swag()
    other.load_state_dict(guide.state_dict())
    assert not other.is_joint
    guide.finish()
    once = {name: value.clone() for name, value in guide.state_dict().items()}
    guide.finish()  # as after a run that was resumed at its end
    assert all(torch.equal(value, once[name]) for name, value in guide.state_dict().items())
    other.load_state_dict(guide.state_dict())
    torch.manual_seed(1)
    first = guide.draw(3)
    torch.manual_seed(1)
    second = other.draw(3)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert other.metrics() == guide.metrics()
