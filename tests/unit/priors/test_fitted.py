"""Priors that follow the posterior: their divergences, and how they travel."""

import copy
import io
import math
import pickle

import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import nn
from torch.distributions import Normal

import zoo
from zoo.errors import ConfigError
from zoo.infer.predict.draws import draw_prior
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective, site_divergences, total_divergence
from zoo.network.slots import Slot
from zoo.priors import Prior, prior_of_slot
from zoo.registry import Recipe
from zoo.truth.calibration import calibrate

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")

FITTED = ["EmpiricalBayes", "Graves"]


@pytest.fixture(params=FITTED)
def fitted(request):
    return request.param


def pair(text, value=None):
    """Prior and guide of one slot, with the guide's parameters off their start."""
    slot = Slot("w", torch.randn(3, 4) if value is None else value, "linear")
    prior = prior_of_slot(Prior.parse(text), slot)
    guide = prior.guide(0.3)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return prior, guide


def moments(guide):
    mean, variance = (moment.detach() for moment in guide.weight_moments())
    return mean, variance


def divergence(prior, guide):
    prior.after_update(guide)
    ((value, analytic),) = site_divergences(prior, guide).values()
    assert analytic
    return value


# gamma, KL = ln(1 + gamma^2) / 2: computed with 30 digits.
RATIOS = [
    (0.0, 0.0),
    (0.1, 0.0049751654265840414),
    (1.0, 0.34657359027997265),
    (-2.0, 0.80471895621705019),
    (3.0, 1.1512925464970228),
    (10.0, 2.3075602584206297),
]


@pytest.mark.parametrize(("gamma", "kl"), RATIOS)
def test_empirical_bayes_costs_half_the_log_of_one_plus_gamma_squared(gamma, kl):
    prior, guide = pair("EmpiricalBayes")
    with torch.no_grad():
        guide["w"].gamma.fill_(gamma)
    value = divergence(prior, guide)
    assert value.item() == pytest.approx(12 * kl, rel=1e-9)
    by_gamma, by_rho = torch.autograd.grad(value, [guide["w"].gamma, guide["w"].rho])
    expected = torch.full((3, 4), gamma / (1 + gamma**2))
    torch.testing.assert_close(by_gamma, expected, rtol=1e-9, atol=0)
    # the scale of a weight costs nothing
    torch.testing.assert_close(by_rho, torch.zeros(3, 4), rtol=0, atol=1e-12)


def test_empirical_bayes_prior_has_the_second_moments_of_the_posterior():
    prior, guide = pair("EmpiricalBayes")
    prior.after_update(guide)
    mean, variance = moments(guide)
    normal = prior.normal()
    torch.testing.assert_close(normal.variance, variance + mean**2, rtol=1e-12, atol=0)
    assert not normal.loc.any()


# mu, sigma of a block, and m and v of its prior: computed with 30 digits.
BLOCK = {
    "mu": [0.1, -0.2, 0.3, 0.5],
    "sigma": [0.1, 0.2, 0.1, 0.05],
    "m": 0.175,
    "v": 0.0825,
}


def test_graves_prior_is_mean_and_spread_of_the_block():
    prior, guide = pair("Graves", torch.zeros(4))
    with torch.no_grad():
        guide["w"].loc.copy_(torch.tensor(BLOCK["mu"]))
        guide["w"].log_scale.copy_(torch.tensor(BLOCK["sigma"]).log())
    value = divergence(prior, guide)
    normal = prior.normal()
    assert normal.loc.item() == pytest.approx(BLOCK["m"], rel=1e-12)
    assert normal.variance.item() == pytest.approx(BLOCK["v"], rel=1e-12)
    expected = sum(0.5 * math.log(BLOCK["v"] / s**2) for s in BLOCK["sigma"])
    assert value.item() == pytest.approx(expected, rel=1e-9)


def graves_divergence(loc, log_scale):
    """Return the divergence with the best prior put in, as one differentiable function."""
    mean = loc.mean()
    v = ((2 * log_scale).exp() + (loc - mean) ** 2).mean()
    return (0.5 * v.log() - log_scale).sum()


def test_gradients_of_graves_are_those_of_the_divergence_with_the_best_prior():
    prior, guide = pair("Graves")
    parameters = [guide["w"].loc, guide["w"].log_scale]
    ours = torch.autograd.grad(divergence(prior, guide), parameters)
    exact = torch.autograd.grad(graves_divergence(*parameters), parameters)
    for got, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_no_other_prior_of_the_family_is_closer(fitted):
    prior, guide = pair(fitted)
    best = divergence(prior, guide).item()
    mean, variance = moments(guide)
    normal = prior.normal()
    for factor, shift in ((1.1, 0.0), (0.9, 0.0), (1.0, 0.05), (1.0, -0.05)):
        other = Normal(normal.loc + shift, normal.scale * factor)
        posterior = Normal(mean, variance.sqrt())
        if fitted == "EmpiricalBayes" and shift:  # its mean is zero by definition
            continue
        worse = torch.distributions.kl_divergence(posterior, other).sum().item()
        assert worse > best


def model_of(text, **options):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    return zoo.create(
        "mean_field",
        net,
        likelihood="gaussian(noise=0.5)",
        num_data=20,
        priors={"*weight": text},
        **options,
    )


def data():
    x = torch.randn(20, 3)
    return x, x.sum(1)


def trained(text, mode="off", **options):
    torch.manual_seed(0)
    model, (x, y) = model_of(text), data()
    guide = model.guide(init_scale=0.1)
    recipe = Recipe(num_steps=30, batch_size=8, lr=0.02, kl_warmup=0.3)
    SVI(model, guide, x, y, recipe=recipe, seed=0, mode=mode, **options).run(progress_bar=False)
    return model, guide


def priors_of(model):
    """Copies of the fitted normals, which the next update does not change."""
    normals = {name: model.prior(name).normal() for name in model.fitted_priors}
    return {name: Normal(n.loc.clone(), n.scale.clone()) for name, n in normals.items()}


def assert_same_priors(first, second):
    assert list(first) == list(second) == ["0.weight", "2.weight"]
    for name, normal in first.items():
        assert torch.equal(normal.loc, second[name].loc)
        assert torch.equal(normal.scale, second[name].scale)


@pytest.mark.parametrize("mode", ["off", "replay"])
def test_after_training_the_prior_is_the_best_for_the_last_posterior(fitted, mode):
    model, guide = trained(fitted, mode)
    found = priors_of(model)
    model.method.after_update(model, guide, 1.0)  # it would follow now if it had not before
    assert_same_priors(found, priors_of(model))
    moved = [n for n in found.values() if not torch.equal(n.scale, torch.ones_like(n.scale))]
    assert len(moved) == 2


@pytest.mark.parametrize("options", [{"num_particles": 3}, {"local": True}])
def test_several_draws_and_local_noise_train_as_well(fitted, options):
    model, _ = trained(fitted, **options)
    assert all(torch.isfinite(normal.scale).all() for normal in priors_of(model).values())


def test_model_without_its_guide_keeps_the_prior(fitted):
    model, guide = trained(fitted)
    found = priors_of(model)
    alone = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.mul_(2)
    model.method.after_update(model, guide, 1.0)
    assert_same_priors(found, priors_of(alone))
    assert not torch.equal(found["0.weight"].scale, priors_of(model)["0.weight"].scale)


def test_stored_prior_is_found_again(fitted):
    model, _ = trained(fitted)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = model_of(fitted)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same_priors(priors_of(model), priors_of(other))


def test_model_and_guide_that_were_sent_away_are_fitted_as_before(fitted):
    model, guide = pickle.loads(pickle.dumps(trained(fitted)))
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.mul_(2)
    before = priors_of(model)
    model.method.after_update(model, guide, 1.0)
    assert not torch.equal(before["0.weight"].scale, priors_of(model)["0.weight"].scale)


def test_prior_follows_a_change_of_precision(fitted):
    model, guide = trained(fitted)
    model, guide = model.float(), guide.float()
    model.method.after_update(model, guide, 1.0)
    for normal in priors_of(model).values():
        assert normal.scale.dtype == torch.float32


def test_divergence_of_the_objective_is_that_of_stock_pyro(fitted):
    model, guide = trained(fitted)
    x, y = data()
    torch.manual_seed(1)
    ours = Objective(model, guide)(x, y)
    torch.manual_seed(1)
    stock = TraceMeanField_ELBO().differentiable_loss(model, guide, x, y)
    assert ours.item() == pytest.approx(stock.item(), rel=1e-12)
    assert total_divergence(model, guide) > 0


def test_prior_is_standard_normal_before_it_is_fitted(fitted):
    model = model_of(fitted)
    for normal in priors_of(model).values():
        assert (normal.scale == 1).all()
        assert (normal.loc == 0).all()
    assert draw_prior(model, 3, seed=0) is not None


def test_prior_follows_the_start_of_the_posterior_and_every_update(fitted):
    prior, guide = pair(fitted, torch.ones(2, 3))
    prior.before_training(guide)
    start = prior.normal().scale.clone()
    assert not torch.equal(start, torch.ones_like(start))
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.1)
    assert torch.equal(prior.normal().scale, start)
    prior.after_update(guide)
    assert not torch.equal(prior.normal().scale, start)
    assert not prior.normal().scale.requires_grad


def test_guide_does_not_change_the_model_while_it_samples(fitted):
    model, guide = trained(fitted)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.mul_(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    guide()
    guide.draw(2)
    TraceMeanField_ELBO().differentiable_loss(model, guide, *data())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_full_rank_guide_is_refused(fitted):
    with pytest.raises(ConfigError, match=r"fitted to the means and sds of a factorised one"):
        model_of(fitted).full_rank_guide(0.1)


def test_calibration_is_refused(fitted):
    with pytest.raises(ConfigError, match="fitted to the data"):
        calibrate("mean_field", priors={"*weight": fitted})


def test_ordinary_priors_are_not_fitted():
    model = model_of("GroupHorseshoe")
    assert model.fitted_priors == []
    assert model.prior("0.weight").normal() is None
    assert model.prior("0.bias").normal().scale.item() == 1
    assert model_of("Normal(0, HalfCauchy(1))").prior("0.weight").normal() is None
