"""Any prior can be put on the weights of any method, and the guide follows it."""

import pyro
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import nn

import zoo
import zoo.errors
from zoo.infer.svi.objective import site_divergences

METHODS = ["mean_field", "group_horseshoe", "sparse_vd"]
SCALES = {"_global_a": True, "_global_b": True, "_local_a": True, "_local_b": True, "_base": True}
# What the sites of a weight are called, and whether their divergence has a closed form.
PRIORS = {
    "Normal(0, 1)": {"": True},
    "Laplace(0, 1)": {"": True},
    "StudentT(3)": {"": False},
    "Cauchy(0, 1)": {"": False},
    "Normal(0, HalfCauchy(1))": {"_scale": False, "": True},
    "Normal(0, HalfNormal(1))": {"_scale": True, "": True},
    "GroupHorseshoe": SCALES,
    "GroupHorseshoe(group=element)": SCALES,
    "GroupHorseshoe(group=input)": SCALES,
    "GroupHorseshoe(group=output)": SCALES,
    "GroupNormalJeffreys": {"_z": True, "_base": True},
    "TruncatedNormalJeffreys(group=output)": {"_log_scale": False, "": True},
    "SparseVD": {"": True},
    "EmpiricalBayes": {"": True},
    "Graves": {"": True},
    "SmoothLogUniform(low=-8, high=2)": {"": False},
    "Quantized(codebook=[-0.2, 0, 0.2])": {"_base": True},
    "Normal(Normal(0, 1), LogNormal(0, HalfNormal(1)))": {
        "_loc": True,
        "_scale_scale": True,
        "_scale": True,
        "": True,
    },
}

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


@pytest.fixture(params=PRIORS)
def prior(request):
    return request.param


@pytest.fixture
def pair(method, prior):
    net = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3), nn.Tanh(), nn.Linear(3, 1)
    )
    model = zoo.create(method, net, likelihood="gaussian", priors={"*.weight": prior}, num_data=20)
    return model, model.guide(init_scale=0.05)


@pytest.fixture
def batch():
    return torch.randn(5, 2, 4), torch.randn(5)


def latent_sites(trace):
    return [
        name
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site["is_observed"]
    ]


def test_one_step_is_finite_and_reaches_every_parameter(pair, batch):
    model, guide = pair
    loss = TraceMeanField_ELBO()(model, guide)(*batch)
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in guide.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_guide_samples_the_latent_sites_of_the_model_in_order(pair, batch):
    model, guide = pair
    guide_trace = poutine.trace(guide).get_trace(*batch)
    model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*batch)
    pyro.util.check_model_guide_match(model_trace, guide_trace)
    model_sites = [n for n in latent_sites(model_trace) if n != "obs_id"]
    assert latent_sites(guide_trace) == model_sites
    names = [n for n, site in model_trace.nodes.items() if site["type"] == "sample"]
    for name in names:
        assert not any(other.startswith(name + ".") for other in names)


def test_closed_form_is_used_wherever_there_is_one(pair, prior):
    model, guide = pair
    divergences = site_divergences(model.sample_slots, guide)
    for slot in ("0.weight", "3.weight", "5.weight"):
        found = {
            name.removeprefix(slot): analytic
            for name, (_, analytic) in divergences.items()
            if name.startswith(slot)
        }
        assert found == PRIORS[prior]
        assert list(found) == list(PRIORS[prior])
    assert divergences["0.bias"][1]


def test_guide_starts_at_the_weights_of_the_network(pair):
    model, _ = pair
    guide_trace = poutine.trace(model.guide(init_scale=1e-17)).get_trace()
    values = poutine.replay(model.sample_slots, trace=guide_trace)()
    for name, value in values.items():
        # four scales and a weight, each off by 1e-17 and by rounding
        assert torch.allclose(value, model.net.get_parameter(name), rtol=1e-12, atol=1e-15)


def test_noise_prior_becomes_a_site_that_the_guide_covers(method, batch):
    model = zoo.create(
        method,
        nn.Sequential(nn.Flatten(), nn.Linear(8, 1)),
        likelihood="gaussian",
        priors={"noise": "HalfNormal(1)"},
        num_data=20,
    )
    guide = model.guide(init_scale=0.05)
    divergences = site_divergences(model.sample_slots, guide)
    assert divergences["noise"][1]
    loss = TraceMeanField_ELBO()(model, guide)(*batch)
    loss.backward()
    assert guide["noise"]["noise"].loc.grad is not None
    assert not model.likelihood.log_noise.requires_grad


@pytest.mark.parametrize(("prior", "median"), [("Uniform(1, 2)", 1.5), ("Pareto(1, 2)", 2**0.5)])
def test_guide_starts_at_the_median_of_a_prior_that_excludes_the_current_value(prior, median):
    options = {"likelihood": "gaussian", "priors": {"noise": prior}, "num_data": 20}
    model = zoo.create("mean_field", nn.Linear(2, 1), **options)
    assert model.slots["noise"].value.item() < 1
    drawn = model.guide(init_scale=1e-9)["noise"].draw(1)["noise"]
    assert drawn.item() == pytest.approx(median, rel=1e-6)


@pytest.mark.parametrize("number", ["1e-300", "1e300"])
def test_number_that_single_precision_cannot_hold_is_refused(number):
    net = nn.Linear(2, 1, dtype=torch.float32)
    with pytest.raises(zoo.errors.PriorError, match="float32 cannot hold"):
        zoo.create(
            "mean_field",
            net,
            likelihood="gaussian",
            priors={"*": f"Normal(0, {number})"},
            num_data=2,
        )
