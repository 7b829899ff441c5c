"""Points: no spread, and a divergence with the Jacobian of their coordinates."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch.distributions import biject_to, constraints, kl_divergence

from guides import MeanField
from guides.darts import DartsGuide
from guides.laplace import LaplaceGuide
from guides.point import Point

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")


@pytest.mark.parametrize("u", [-1.5, 0.0, 0.7])
def test_divergence_of_a_positive_point_is_minus_the_density_of_its_logarithm(u):
    u = torch.tensor(u)
    divergence = kl_divergence(Point(u.exp(), -u), dist.LogNormal(0.3 * torch.ones(()), 2.0))
    torch.testing.assert_close(divergence, -dist.Normal(0.3, 2.0).log_prob(u))


def test_divergence_of_a_vector_adds_up_over_its_event():
    u = torch.tensor([-0.4, 0.2, 1.0])
    transform = biject_to(constraints.unit_interval)
    z = transform(u)
    jacobian = transform.log_abs_det_jacobian(u, z)
    prior = dist.Beta(2 * torch.ones(3), 3 * torch.ones(3)).to_event(1)
    divergence = kl_divergence(Point(z, -jacobian.sum(), event_dim=1), prior)
    torch.testing.assert_close(divergence, -prior.log_prob(z) - jacobian.sum())


def test_point_on_the_real_line_is_an_ordinary_delta():
    z = torch.tensor(0.8)
    point = kl_divergence(Point(z), dist.Normal(torch.zeros(()), 1.0))
    torch.testing.assert_close(point, -dist.Normal(0.0, 1.0).log_prob(z))


def test_loss_of_a_point_is_minus_the_log_joint_in_unconstrained_space():
    y = torch.tensor([0.4, -0.3])

    def model():
        s = pyro.sample("s", dist.HalfNormal(torch.ones(())))
        with pyro.plate("rows", 2):
            pyro.sample("y", dist.Normal(torch.zeros(()), s), obs=y)

    guide = LaplaceGuide({"s": MeanField(model, init={"s": torch.tensor(0.6)})})
    loss = TraceMeanField_ELBO().differentiable_loss(model, guide)
    s = torch.tensor(0.6)
    joint = dist.HalfNormal(1.0).log_prob(s) + dist.Normal(0.0, s).log_prob(y).sum()
    torch.testing.assert_close(loss.detach(), -(joint + s.log()))


def test_state_of_a_point_that_had_a_small_scale_is_read():
    guide = DartsGuide("structure", torch.zeros(3))
    site = "sites.@structure_logits"
    guide.load_state_dict({f"{site}.loc": torch.ones(3), f"{site}.log_scale": torch.zeros(3)})
    assert torch.equal(guide.logits.loc, torch.ones(3))


def test_scores_of_primitives_are_a_delta():
    start = torch.tensor([0.2, -1.0, 0.5])
    guide = DartsGuide("structure", start)
    assert isinstance(guide.distributions()["structure_logits"], dist.Delta)
    assert torch.equal(guide.draw(4)["structure_logits"], start.expand(4, 3))
    assert [name for name, _ in guide.named_parameters()] == ["logits.loc"]
    torch.testing.assert_close(guide.probabilities(), torch.softmax(start, 0))
