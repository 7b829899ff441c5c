"""What the entries over weight slots promise beyond the contract."""

import pyro.poutine as poutine
import pytest
import torch

from guides.empirical_bayes import EmpiricalBayesGuide
from guides.graves import GravesGuide
from guides.group_normal_jeffreys import GroupNormalJeffreysGuide
from guides.sparse_vd import SparseVDGuide
from zoo.distributions import kl_log_uniform
from zoo.infer.pruning.groups import PrunableGuide
from zoo.infer.svi.objective import Objective
from zoo.registry import get
from zoo.testing.problems import model_and_guide, small_data, small_model

pytestmark = pytest.mark.usefixtures("module_local_params")

GUIDES = {
    "sparse_vd": SparseVDGuide,
    "group_normal_jeffreys": GroupNormalJeffreysGuide,
    "empirical_bayes": EmpiricalBayesGuide,
    "graves": GravesGuide,
}
IMPROPER = {"sparse_vd": "SparseVD()", "group_normal_jeffreys": "GroupNormalJeffreys(group=auto)"}
#: Largest error of the published approximation per log-uniform element, in nats.
APPROXIMATION = 0.0094


def divergence_in_the_loss(model, guide):
    x, y = small_data("regression")
    torch.manual_seed(5)
    loss = Objective(model, guide)(x, y)
    torch.manual_seed(5)
    trace = poutine.trace(guide).get_trace()
    trace = poutine.trace(poutine.replay(model, trace=trace)).get_trace(x, y)
    trace.compute_log_prob()
    return float((loss + trace.nodes["y"]["log_prob_sum"]).detach())


def exact_divergence(part, site):
    """Return the divergence of one site, and how many of its elements are log-uniform."""
    loc, log_scale = part[site].loc.detach(), part[site].log_scale.detach()
    if isinstance(part, SparseVDGuide) or site.endswith("_z"):
        exact = kl_log_uniform(loc, log_scale.exp(), method="exact")
        return float(exact.sum()), loc.numel()
    kl = 0.5 * ((2 * log_scale).exp() + loc**2 - 2 * log_scale - 1)
    return float(kl.sum()), 0


@pytest.mark.parametrize("method", IMPROPER)
def test_divergence_is_the_exact_one_up_to_the_published_error(method):
    model, guide = model_and_guide(get(method))
    terms = [exact_divergence(guide[slot], s) for slot in model.slots for s in guide[slot].names]
    exact, count = (sum(column) for column in zip(*terms, strict=True))
    assert count > 0
    assert abs(divergence_in_the_loss(model, guide) - exact) < APPROXIMATION * count


@pytest.mark.parametrize("method", GUIDES)
def test_weights_have_the_guide_of_the_method_and_can_be_pruned(method):
    model = small_model(get(method))
    part = model.guide(init_scale=0.1)["0.weight"]
    assert isinstance(part, GUIDES[method])
    assert isinstance(part, PrunableGuide)
    assert get(method).compresses


@pytest.mark.parametrize("method", IMPROPER)
def test_proper_counterpart_has_draws_and_the_same_likelihood(method):
    model = small_model(get(method))
    proper = model.proper()
    assert str(proper.priors["0.weight"]).startswith("TruncatedNormalJeffreys(low=-8, high=2")
    assert proper.priors["0.bias"] == model.priors["0.bias"]
    assert str(model.priors["0.weight"]) == IMPROPER[method]
    x, y = small_data("regression")
    values = {name: torch.randn_like(slot.value) for name, slot in model.slots.items()}
    assert torch.equal(model.evaluate(values, x), proper.evaluate(values, x))
    trace = poutine.trace(proper).get_trace(x, y)
    assert torch.isfinite(torch.as_tensor(trace.log_prob_sum()))
    with pytest.raises(NotImplementedError, match="improper"):
        model(x, y)


@pytest.mark.parametrize("method", ["empirical_bayes", "graves"])
def test_fitted_priors_are_proper_as_they_are(method):
    model, guide = model_and_guide(get(method))
    model.method.after_update(model, guide, 1.0)
    proper = model.proper()
    assert proper.priors == model.priors
    for name in model.fitted_priors:
        assert torch.equal(proper.prior(name).normal().scale, model.prior(name).normal().scale)
