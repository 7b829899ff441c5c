import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation

from guides import MeanField
from guides.laplace import LaplaceGuide
from guides.point import Point

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")
PRECISION = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, -0.7], [0.5, -0.7, 2.0]], dtype=torch.float64)


def model():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1))
    s = pyro.sample("s", dist.LogNormal(torch.tensor(0.0), torch.tensor(1.0)))
    return w, s


def laplace():
    init = {"w": torch.tensor([0.3, -0.2]), "s": torch.tensor(1.5)}
    return LaplaceGuide({"model": MeanField(model, init=init, init_scale=1e-3)})


def test_before_the_curvature_is_known_it_is_a_point_and_only_its_mode_is_trained():
    guide = laplace()
    assert [name.rpartition(".")[2] for name, _ in guide.named_parameters()] == ["loc", "loc"]
    assert not guide.is_joint
    assert {type(fn) for fn in guide.distributions().values()} == {Point}
    draws = guide.draw(3)
    assert torch.equal(draws["w"], torch.tensor([0.3, -0.2]).expand(3, 2))
    assert draws["s"].unique().numel() == 1
    assert float(draws["s"][0].detach()) == pytest.approx(1.5)
    torch.testing.assert_close(guide.mode.detach(), torch.tensor([0.3, -0.2, math.log(1.5)]))


def test_draws_have_the_inverse_of_the_curvature_as_covariance():
    guide = laplace()
    guide.set_precision(PRECISION, 0.0)
    with torch.no_grad():
        draws = guide.draw(200_000)
    flat = torch.cat([draws["w"], draws["s"].log().unsqueeze(-1)], dim=1)
    covariance = torch.linalg.inv(PRECISION)
    error = 5 * torch.sqrt(
        (covariance.square() + covariance.diagonal().outer(covariance.diagonal())) / 200_000
    )
    assert ((flat.T.cov() - covariance).abs() < error).all()
    mean_error = 5 * (covariance.diagonal() / 200_000).sqrt()
    assert ((flat.mean(0) - guide.mode).abs() < mean_error).all()
    marginal = [site.log_scale.exp().reshape(-1) for site in guide.sites().values()]
    torch.testing.assert_close(torch.cat(marginal), covariance.diagonal().sqrt())


@pytest.mark.parametrize("diagonal", [False, True])
def test_log_density_is_that_of_the_normal_with_the_jacobian(diagonal):
    guide = laplace()
    guide.set_precision(PRECISION.diagonal() if diagonal else PRECISION, 0.0)
    used = PRECISION.diagonal().diag() if diagonal else PRECISION
    with torch.no_grad(), pyro.validation_enabled(False):  # its checks look at values
        values = guide.draw(7)
        ours = torch.vmap(guide.log_density)(values)
        flat = torch.cat([values["w"], values["s"].log().unsqueeze(-1)], dim=1)
        normal = torch.distributions.MultivariateNormal(guide.mode, precision_matrix=used)
        torch.testing.assert_close(ours, normal.log_prob(flat) - flat[:, 2])
        trace = poutine.trace(guide.sample_sites).get_trace()
        own = guide.log_density({name: trace.nodes[name]["value"] for name in ("w", "s")})
        torch.testing.assert_close(torch.as_tensor(trace.log_prob_sum()), own)


def test_evidence_is_the_integral_of_the_gaussian_through_the_mode():
    for precision in (PRECISION, PRECISION.diagonal()):
        guide = laplace()
        guide.set_precision(precision, -3.0)
        log_det = (precision if precision.dim() == 2 else precision.diag()).logdet()
        expected = -3.0 + 1.5 * math.log(2 * math.pi) - 0.5 * float(log_det)
        assert guide.metrics()["log_evidence"] == pytest.approx(expected, rel=1e-12)


def test_a_curvature_that_is_not_positive_is_refused():
    for precision in (-PRECISION, torch.tensor([1.0, 0.0, 1.0])):
        with pytest.raises(ValueError, match="not positive"):
            laplace().set_precision(precision, 0.0)


def test_its_state_holds_the_covariance_once_it_is_known():
    guide, other = laplace(), laplace()
    other.load_state_dict(guide.state_dict())
    assert not other.is_joint
    guide.set_precision(PRECISION, 1.0)
    other.load_state_dict(guide.state_dict())
    torch.manual_seed(1)
    first = guide.draw(3)
    torch.manual_seed(1)
    second = other.draw(3)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert other.metrics() == guide.metrics()
    assert all(isinstance(value, torch.Tensor) for value in guide.state_dict().values())


@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type.*")
def test_on_a_linear_model_it_agrees_with_the_one_of_pyro():
    x = torch.randn(30, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 * torch.randn(30)

    def regression():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1))
        with pyro.plate("rows", 30):
            pyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)

    with pyro.settings.context(module_local_params=False):
        theirs = AutoLaplaceApproximation(regression)
        svi = SVI(regression, theirs, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
        for _ in range(1500):
            svi.step()
        normal = theirs.laplace_approximation()
        quadratic = normal.get_posterior()
    guide = LaplaceGuide({"model": MeanField(regression, init_scale=1e-3)})
    guide.set_mode(quadratic.loc.detach())
    guide.set_precision(torch.eye(3) + x.T @ x / 0.09, 0.0)
    covariance = guide.scale_tril @ guide.scale_tril.T
    torch.testing.assert_close(
        covariance, quadratic.covariance_matrix.detach(), rtol=1e-6, atol=1e-12
    )
