import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from scipy import stats

from guides import MeanField
from guides.log_scale_normal import LogScaleNormal

pytestmark = pytest.mark.usefixtures("double_precision")


def test_guide_matches_the_model_with_one_explicit_site_each(reference):
    model, args, shapes = reference
    guide = MeanField(model, *args)
    guide_trace = poutine.trace(guide).get_trace(*args)
    model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args)
    pyro.util.check_model_guide_match(model_trace, guide_trace)
    sites = {n: s for n, s in guide_trace.nodes.items() if s["type"] == "sample"}
    latent = {n: s for n, s in sites.items() if type(s["fn"]).__name__ != "_Subsample"}
    assert {n: tuple(s["value"].shape) for n, s in latent.items()} == shapes
    for name, site in latent.items():
        model_site = model_trace.nodes[name]
        assert site["fn"].shape() == model_site["fn"].shape()
        assert site["fn"].event_dim == model_site["fn"].event_dim
        assert model_site["fn"].support.check(site["value"]).all()
        assert not site["infer"].get("is_auxiliary", False)


def test_family_follows_the_support(reference):
    model, args, _ = reference
    guide = MeanField(model, *args)
    families = {
        "real": LogScaleNormal,
        "positive": dist.LogNormal,
        "other": dist.TransformedDistribution,
    }
    kinds = {"loc": "real", "w": "real", "effect": "real", "scale": "positive"}
    for name in guide.names:
        kind = kinds.get(name, "other")
        fn = guide[name].distribution()
        fn = fn.base_dist if isinstance(fn, torch.distributions.Independent) else fn
        assert guide[name].kind == kind
        assert type(fn) is families[kind]


def loss_of(model, guide, args):
    with torch.no_grad():
        return TraceMeanField_ELBO(num_particles=100).loss(model, guide, *args)


@pytest.mark.usefixtures("module_local_params")
def test_elbo_module_with_a_torch_optimizer_improves_the_fit(reference):
    model, args, _ = reference
    guide = MeanField(model, *args)
    before = loss_of(model, guide, args)
    elbo = TraceMeanField_ELBO()(model, guide)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    assert len(list(elbo.parameters())) == 2 * len(guide.names)
    for _ in range(100):
        optimizer.zero_grad()
        elbo(*args).backward()
        optimizer.step()
    assert loss_of(model, guide, args) < before - 1


def test_plain_pyro_svi_improves_the_fit(reference):
    model, args, _ = reference
    guide = MeanField(model, *args)
    before = loss_of(model, guide, args)
    pyro.clear_param_store()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), TraceMeanField_ELBO())
    for _ in range(100):
        svi.step(*args)
    assert len(pyro.get_param_store()) == 2 * len(guide.names)
    assert loss_of(model, guide, args) < before - 1


def test_draws_are_stacked_in_front_of_the_shape_of_each_site(reference):
    model, args, shapes = reference
    guide = MeanField(model, *args, init_scale=0.5)
    draws = guide.draw(7)
    assert {name: tuple(value.shape) for name, value in draws.items()} == {
        name: (7, *shape) for name, shape in shapes.items()
    }
    for value in draws.values():
        assert len(value.reshape(7, -1).unique(dim=0)) == 7


def test_draws_follow_the_posterior(reference):
    model, args, _ = reference
    guide = MeanField(model, *args, init_scale=0.3)
    draws = guide.draw(4000)
    for name, value in draws.items():
        if guide[name].kind == "other":
            continue
        unconstrained = value.log() if guide[name].kind == "positive" else value
        z = (unconstrained - guide[name].loc) / 0.3
        assert stats.kstest(z.detach().flatten().numpy(), stats.norm.cdf).pvalue > 1e-4


def test_loss_of_a_prior_alone_has_no_variance():
    """Every divergence is analytic, so the loss does not depend on what is drawn."""

    def prior():
        zero, one = torch.zeros(()), torch.ones(())
        pyro.sample("w", dist.Normal(zero, one).expand([50, 20]).to_event(2))
        pyro.sample("a", dist.Gamma(one / 2, one).expand([30]).to_event(1))
        pyro.sample("b", dist.InverseGamma(one / 2, one).expand([30]).to_event(1))
        pyro.sample("scale", dist.HalfNormal(one))
        pyro.sample("u", dist.Laplace(zero, one))

    guide = MeanField(prior, init_scale=0.4)
    losses = []
    for seed in range(5):
        pyro.set_rng_seed(seed)
        losses.append(TraceMeanField_ELBO().loss(prior, guide))
    assert len(set(losses)) == 1


def priors_with_medians():
    one = torch.ones(())
    pyro.sample("normal", dist.Normal(3 * one, one).expand([2]).to_event(1))
    pyro.sample("half_normal", dist.HalfNormal(2 * one))
    pyro.sample("exponential", dist.Exponential(2 * one))
    pyro.sample("half_cauchy", dist.HalfCauchy(5 * one))
    pyro.sample("gamma", dist.Gamma(7 * one, one))
    pyro.sample("beta", dist.Beta(2 * one, 5 * one))
    pyro.sample("student", dist.StudentT(3 * one, 4 * one, one))


def test_sites_start_at_the_prior_median_or_at_zero_in_unconstrained_space():
    guide = MeanField(priors_with_medians)
    expected = {
        "normal": 3.0,
        "half_normal": math.log(stats.halfnorm(scale=2).median()),
        "exponential": math.log(math.log(2) / 2),
        "half_cauchy": math.log(5.0),
        "gamma": 0.0,
        "beta": 0.0,
        "student": 0.0,
    }
    for name, start in expected.items():
        assert torch.allclose(guide[name].loc, torch.tensor(start), rtol=1e-10, atol=1e-12), name


def test_init_is_given_in_constrained_space():
    init = {
        "half_normal": torch.tensor(0.25),
        "beta": torch.tensor(0.9),
        "gamma": torch.tensor(9.0),
    }
    guide = MeanField(priors_with_medians, init=init)
    assert guide["half_normal"].loc.item() == pytest.approx(math.log(0.25), rel=1e-12)
    assert guide["gamma"].loc.item() == pytest.approx(math.log(9), rel=1e-12)
    assert guide["beta"].loc.item() == pytest.approx(math.log(0.9 / 0.1), rel=1e-10)
    assert guide["normal"].loc.tolist() == [3.0, 3.0]


def test_init_scale_is_the_unconstrained_deviation_for_all_or_per_site():
    everywhere = MeanField(priors_with_medians, init_scale=0.3)
    chosen = MeanField(priors_with_medians, init_scale={"gamma": 0.5})
    for name in everywhere.names:
        assert everywhere[name].log_scale.exp().flatten()[0].item() == pytest.approx(0.3)
        wanted = 0.5 if name == "gamma" else 0.01
        assert chosen[name].log_scale.exp().flatten()[0].item() == pytest.approx(wanted)


def test_unknown_name_in_init_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"'gama'.*normal, half_normal"):
        MeanField(priors_with_medians, init={"gama": torch.tensor(1.0)})


def test_start_on_the_border_of_the_support_is_refused():
    with pytest.raises(ValueError, match=r"'gamma' cannot start on the border"):
        MeanField(priors_with_medians, init={"gamma": torch.tensor(0.0)})


def test_building_a_guide_draws_no_random_numbers():
    state = torch.get_rng_state()
    MeanField(priors_with_medians)
    assert torch.equal(torch.get_rng_state(), state)


def test_subsampled_data_leave_the_guide_alone():
    def model(y):
        loc = pyro.sample("loc", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("rows", len(y), subsample_size=3) as rows:
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])

    y = torch.ones(10)
    guide = MeanField(model, y)
    assert guide.names == ["loc"]
    assert math.isfinite(TraceMeanField_ELBO().loss(model, guide, y))
