import numpy as np
import pyro
import pyro.poutine as poutine
import pytest
import torch
from scipy import integrate, stats
from torch import nn

from zoo.errors import PriorError
from zoo.network.slots import Slot, network_slots
from zoo.priors import Prior, prior_of_slot
from zoo.priors.options import validated

pytestmark = pytest.mark.usefixtures("double_precision")


def trace_at(prior, values):
    return poutine.trace(poutine.condition(prior, data=values)).get_trace()


def slot(shape, layer="linear", name="w"):
    return Slot(name, torch.randn(shape), layer)


PLAIN = {
    "Normal(0.5, 2)": stats.norm(0.5, 2),
    "Laplace(-1, 0.5)": stats.laplace(-1, 0.5),
    "Cauchy(0, 3)": stats.cauchy(0, 3),
    "StudentT(df=3, loc=1, scale=0.5)": stats.t(3, 1, 0.5),
    "Logistic(0, 2)": stats.logistic(0, 2),
    "Gumbel(0, 2)": stats.gumbel_r(0, 2),
    "Uniform(-20, 20)": stats.uniform(-20, 40),
}


@pytest.mark.parametrize("text", PLAIN)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 2, 2)])
def test_plain_density_is_the_product_over_elements(text, shape):
    place = slot(shape)
    prior = prior_of_slot(Prior.parse(text), place)
    trace = trace_at(prior, {"w": place.value})
    expected = PLAIN[text].logpdf(place.value.numpy()).sum()
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-10)


def test_hyper_priors_are_scalar_sites_shared_by_the_slot():
    place = slot((2, 3), name="0.weight")
    prior = prior_of_slot(Prior.parse("Normal(Laplace(0, 2), LogNormal(0, Gamma(2, 3)))"), place)
    values = {
        "0.weight_loc": torch.tensor(0.3),
        "0.weight_scale_scale": torch.tensor(0.7),
        "0.weight_scale": torch.tensor(1.4),
        "0.weight": place.value,
    }
    trace = trace_at(prior, values)
    sites = [name for name, site in trace.nodes.items() if site["type"] == "sample"]
    assert sites == list(values)
    expected = (
        stats.laplace(0, 2).logpdf(0.3)
        + stats.gamma(2, scale=1 / 3).logpdf(0.7)
        + stats.lognorm(0.7).logpdf(1.4)
        + stats.norm(0.3, 1.4).logpdf(place.value.numpy()).sum()
    )
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("tau", [1e-5, 0.3, 2.0])
def test_horseshoe_density_is_that_of_gammas_inverse_gammas_and_normals(tau):
    place = slot((2, 3))
    prior = prior_of_slot(Prior.parse(f"GroupHorseshoe(scale={tau})"), place)
    rng = np.random.default_rng(0)
    global_a, global_b = tau**2 * rng.gamma(2.0), rng.gamma(2.0)
    local_a, local_b, base = rng.gamma(2.0, size=3), rng.gamma(2.0, size=3), rng.normal(size=(2, 3))
    trace = trace_at(
        prior,
        {
            "w_global_a": torch.tensor(global_a),
            "w_global_b": torch.tensor(global_b),
            "w_local_a": torch.tensor(local_a),
            "w_local_b": torch.tensor(local_b),
            "w_base": torch.tensor(base),
        },
    )
    expected = (
        stats.gamma(0.5, scale=tau**2).logpdf(global_a)
        + stats.invgamma(0.5).logpdf(global_b)
        + stats.gamma(0.5).logpdf(local_a).sum()
        + stats.invgamma(0.5).logpdf(local_b).sum()
        + stats.norm.logpdf(base).sum()
    )
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-10)
    value = base * np.sqrt(global_a * global_b * local_a * local_b)
    np.testing.assert_allclose(trace.nodes["w"]["value"].numpy(), value, rtol=1e-12)


@pytest.fixture(scope="module")
def horseshoe_draws():
    """Independent draws of a horseshoe with one group of one weight, global scale 0.1."""
    place = Slot("w", torch.zeros(1, 1, dtype=torch.float64), "linear")
    prior = prior_of_slot(Prior.parse("GroupHorseshoe(scale=0.1)"), place)
    pyro.set_rng_seed(0)
    with pyro.validation_enabled(False):
        traces = [poutine.trace(prior).get_trace().nodes for _ in range(1000)]
    names = ["w", "w_base", "w_global_a", "w_global_b", "w_local_a", "w_local_b"]
    return {n: np.array([nodes[n]["value"].item() for nodes in traces]) for n in names}


def test_horseshoe_scale_is_a_product_of_half_cauchys(horseshoe_draws):
    scales = np.abs(horseshoe_draws["w"] / horseshoe_draws["w_base"])
    product = 0.1 * np.abs(np.random.default_rng(0).standard_cauchy((2, 100_000))).prod(0)
    assert stats.ks_2samp(scales, product).pvalue > 1e-4


@pytest.mark.parametrize(("site", "scale"), [("global", 0.1), ("local", 1.0)])
def test_each_scale_of_the_horseshoe_is_half_cauchy(horseshoe_draws, site, scale):
    roots = np.sqrt(horseshoe_draws[f"w_{site}_a"] * horseshoe_draws[f"w_{site}_b"])
    assert stats.kstest(roots, stats.halfcauchy(scale=scale).cdf).pvalue > 1e-4


def test_standardised_weights_of_the_horseshoe_are_normal(horseshoe_draws):
    assert stats.kstest(horseshoe_draws["w_base"], stats.norm.cdf).pvalue > 1e-4


CASES = [
    (nn.Linear(4, 3), "weight", "auto", (1, 4)),
    (nn.Linear(4, 3), "weight", "input", (1, 4)),
    (nn.Linear(4, 3), "weight", "output", (3, 1)),
    (nn.Linear(4, 3), "weight", "element", (3, 4)),
    (nn.Linear(4, 3), "bias", "auto", (3,)),
    (nn.Linear(4, 3), "bias", "input", (3,)),
    (nn.Conv2d(2, 5, 3), "weight", "auto", (5, 1, 1, 1)),
    (nn.Conv2d(2, 5, 3), "weight", "input", (1, 2, 1, 1)),
    (nn.Conv2d(2, 5, 3), "weight", "output", (5, 1, 1, 1)),
    (nn.Conv2d(2, 5, 3), "bias", "auto", (5,)),
    (nn.Conv1d(2, 5, 3), "weight", "auto", (5, 1, 1)),
    (nn.Embedding(6, 2), "weight", "auto", (6, 2)),
]


@pytest.mark.parametrize("family", ["GroupHorseshoe", "GroupNormalJeffreys"])
@pytest.mark.parametrize(("layer", "name", "group", "shape"), CASES)
def test_weights_of_a_group_share_one_scale(family, layer, name, group, shape):
    place = next(s for s in network_slots(layer.double()) if s.name == name)
    prior = prior_of_slot(Prior.parse(f"{family}(group={group})"), place)
    guide = prior.guide(0.1)
    nodes = poutine.trace(poutine.replay(prior, trace=poutine.trace(guide).get_trace()))
    nodes = nodes.get_trace().nodes
    local = f"{name}_local_a" if family == "GroupHorseshoe" else f"{name}_z"
    assert nodes[local]["value"].shape == (int(np.prod(shape)),)
    scale = nodes[name]["value"] / nodes[f"{name}_base"]["value"]
    assert scale.shape == place.shape
    kept = scale[tuple(slice(0, size) for size in shape)]
    assert kept.shape == shape
    assert torch.allclose(scale, kept.expand(place.shape), rtol=1e-12)
    assert len(set(kept.flatten().tolist())) == kept.numel()


def test_normal_jeffreys_density_is_inverse_in_the_scale():
    place = slot((2, 3))
    prior = prior_of_slot(Prior.parse("GroupNormalJeffreys"), place)
    z = torch.tensor([0.2, -1.0, 3.0])
    densities = [
        trace_at(prior, {"w_z": scale, "w_base": place.value}).log_prob_sum().item()
        for scale in (z, 10 * z)
    ]
    # The prior is improper: only differences are defined.
    assert densities[1] - densities[0] == pytest.approx(-3 * np.log(10), rel=1e-10)


@pytest.mark.parametrize(
    "text",
    [
        "Normal(0, HalfCauchy(1))",
        "Normal(0, InverseGamma(1, 1))",
        "GroupHorseshoe",
        "GroupNormalJeffreys",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prior_and_guide_follow_the_precision_of_the_slot(text, dtype):
    place = Slot("w", torch.randn(2, 3, dtype=dtype), "linear")
    prior = prior_of_slot(Prior.parse(text), place)
    guide = prior.guide(0.1)
    assert {parameter.dtype for parameter in guide.parameters()} == {dtype}
    trace = poutine.trace(poutine.replay(prior, trace=poutine.trace(guide).get_trace()))
    assert trace.get_trace().nodes["w"]["value"].dtype == dtype


def test_truncated_normal_jeffreys_is_a_uniform_log_scale_and_normal_weights():
    place = slot((2, 3))
    prior = prior_of_slot(Prior.parse("TruncatedNormalJeffreys(low=-3, high=1)"), place)
    log_scale = torch.tensor([-2.0, 0.5, 0.0])
    trace = trace_at(prior, {"w_log_scale": log_scale, "w": place.value})
    scales = log_scale.exp().expand(2, 3).numpy()
    expected = -3 * np.log(4) + stats.norm(0, scales).logpdf(place.value.numpy()).sum()
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-10)


# Log density of a single weight for a = -8, b = 2: computed with 30 digits.
SMOOTH = [(0.001, 3.90903708796), (0.1, -0.704003764258), (1.0, -3.10963271782)]


@pytest.mark.parametrize(("weight", "log_density"), SMOOTH)
def test_truncated_normal_jeffreys_has_the_reference_density_without_its_scale(weight, log_density):
    place = Slot("w", torch.zeros(1), "other")
    prior = prior_of_slot(Prior.parse("TruncatedNormalJeffreys"), place)

    def joint(log_scale):
        values = {"w_log_scale": torch.tensor([log_scale]), "w": torch.tensor([weight])}
        return np.exp(trace_at(prior, values).log_prob_sum().item())

    marginal, _ = integrate.quad(joint, -8, 2, points=[np.log(weight)], epsrel=1e-10, limit=200)
    assert np.log(marginal) == pytest.approx(log_density, rel=1e-7)


@pytest.mark.parametrize(
    ("improper", "proper"),
    [
        ("SparseVD", "TruncatedNormalJeffreys(group=element)"),
        ("GroupNormalJeffreys", "TruncatedNormalJeffreys(group=auto)"),
        ("GroupNormalJeffreys(group=output)", "TruncatedNormalJeffreys(group=output)"),
    ],
)
def test_improper_priors_name_their_proper_counterpart(improper, proper):
    found = prior_of_slot(Prior.parse(improper), slot((2, 3))).proper()
    assert Prior.parse(found) == Prior.parse(proper)


@pytest.mark.parametrize("text", ["Normal(0, 1)", "GroupHorseshoe", "EmpiricalBayes", "Graves"])
def test_proper_priors_stand_for_themselves(text):
    assert prior_of_slot(Prior.parse(text), slot((2, 3))).proper() is None


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(PriorError, match=r"low < high.*low=2, high=1"):
        Prior.parse("TruncatedNormalJeffreys(low=2, high=1)")


@pytest.mark.parametrize("text", ["GroupNormalJeffreys()", "GroupHorseshoe()"])
def test_standard_deviations_stay_below_their_bound(text):
    prior = prior_of_slot(Prior.parse(text), slot((2, 3)))
    prior.settings = validated(prior.options, {"max_sd": 0.2})
    assert prior.is_bounded
    guide = prior.guide(0.5)
    scales = guide["w_base"].log_scale
    with torch.no_grad():
        scales[0] = np.log(0.1)
    prior.after_update(guide)
    expected = torch.tensor([0.1, 0.2])[:, None].expand(2, 3)
    torch.testing.assert_close(scales.detach().exp(), expected)


@pytest.mark.parametrize("text", ["GroupNormalJeffreys()", "GroupHorseshoe()", "Normal(0, 1)"])
def test_what_has_no_bound_is_not_constrained(text):
    prior = prior_of_slot(Prior.parse(text), slot((2, 3)))
    guide = prior.guide(5.0)
    before = [p.detach().clone() for p in guide.parameters()]
    prior.after_update(guide)
    torch.testing.assert_close([p.detach() for p in guide.parameters()], before)
    assert not prior.is_bounded
