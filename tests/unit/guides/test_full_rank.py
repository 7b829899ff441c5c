"""The full-rank guide: Pyro's, with a density that can be asked for at any value."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import zoo
from guides.full_rank import FullRank
from zoo.errors import ConfigError
from zoo.infer.predict.draws import draw_posterior, log_posterior
from zoo.infer.svi.loop import SVI
from zoo.registry import Recipe

pytestmark = pytest.mark.usefixtures("double_precision")


def program():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.HalfNormal(torch.tensor(1.0)))
    return w, s


def guide():
    made = FullRank(
        program, init={"w": torch.tensor([0.5, -1.0]), "s": torch.tensor(0.7)}, init_scale=0.3
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def test_starts_where_it_is_told():
    made = FullRank(
        program, init={"w": torch.tensor([0.5, -1.0]), "s": torch.tensor(0.7)}, init_scale=1e-6
    )
    values = made.sample_sites()
    torch.testing.assert_close(values["w"], torch.tensor([0.5, -1.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(values["s"], torch.tensor(0.7), atol=1e-4, rtol=0)


def test_density_is_that_of_the_transformed_normal():
    torch.manual_seed(0)
    made = guide()
    w, s = torch.tensor([0.4, -0.8]), torch.tensor(0.9)
    with pyro.settings.context(module_local_params=True):
        normal = made.auto.get_posterior()
    flat = torch.cat([w, s.log()[None]])
    expected = normal.log_prob(flat) - s.log()  # |d log s / ds| = 1 / s
    torch.testing.assert_close(made.log_density({"w": w, "s": s}), expected)


def test_draws_come_vectorised_and_correlated():
    torch.manual_seed(0)
    made = guide()
    values = made.draw(4000)
    assert values["w"].shape == (4000, 2)
    assert (values["s"] > 0).all()
    with pyro.settings.context(module_local_params=True):
        covariance = made.auto.get_posterior().covariance_matrix
    drawn = torch.cat([values["w"], values["s"].log()[:, None]], dim=1).T.cov()
    torch.testing.assert_close(drawn, covariance, atol=0.02, rtol=0.1)


def test_two_guides_do_not_share_parameters():
    first, second = guide(), guide()
    with torch.no_grad():
        next(first.parameters()).fill_(3.0)
    assert not torch.equal(next(first.parameters()), next(second.parameters()))
    assert (first.sample_sites()["w"] > 1.0).all()
    assert (second.sample_sites()["w"] < 2.5).all()


def test_finds_the_exact_posterior_of_a_correlated_regression():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    x[:, 1] = 0.9 * x[:, 0] + 0.44 * x[:, 1]
    y = x.sum(1) + 0.5 * torch.randn(60, generator=generator)
    net = nn.Linear(2, 1, bias=False)
    model = zoo.create("mean_field", net, likelihood="gaussian(noise=0.5)", num_data=60)
    made = model.method.full_rank_guide(model, 0.1)
    recipe = Recipe(num_steps=1500, batch_size=60, lr=0.03, schedule="linear", kl_warmup=0.0)
    SVI(model, made, x, y, recipe=recipe, seed=0, num_particles=4, mode="replay").run(
        progress_bar=False
    )
    draws = draw_posterior(model, made, 20_000, seed=1)
    precision = torch.eye(2) + x.T @ x / 0.25
    exact = torch.linalg.inv(precision)
    drawn = draws.sites["weight"].reshape(-1, 2)
    # 3 % of Monte Carlo error on top of what noisy gradients leave.
    torch.testing.assert_close(drawn.T.cov(), exact, rtol=0.1, atol=0.05 * float(exact.max()))
    log_q = log_posterior(made, draws)
    normal = torch.distributions.MultivariateNormal(exact @ x.T @ y / 0.25, exact)
    assert float((log_q - normal.log_prob(drawn)).std()) < 0.2


def test_too_many_unknowns_are_refused():
    model = zoo.create("mean_field", nn.Linear(4000, 1), likelihood="gaussian", num_data=5)
    with pytest.raises(ConfigError, match=r"full_rank.*4001 unknowns"):
        model.method.full_rank_guide(model, 0.1)
