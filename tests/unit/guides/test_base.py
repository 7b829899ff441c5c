import subprocess
import sys

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch

import guides
from guides import Composite, Guide, MeanField

pytestmark = pytest.mark.usefixtures("double_precision")


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_guides_do_not_import_the_zoo():
    modules = "sorted(n for n in sys.modules if n == 'zoo' or n.startswith('zoo.'))"
    code = f"import sys, guides, guides.distributions; print({modules})"
    assert run(code) == "[]"


def test_importing_guides_registers_the_divergences_they_need():
    code = """
import guides, torch
from torch.distributions import Gamma, HalfNormal, InverseGamma, LogNormal, kl_divergence
one = torch.ones(())
for prior in (HalfNormal(one), Gamma(one, one), InverseGamma(one, one)):
    print(bool(torch.isfinite(kl_divergence(LogNormal(0 * one, one), prior))))
"""
    assert run(code).split() == ["True"] * 3


def part(name, shape):
    def program():
        pyro.sample(name, dist.Normal(torch.zeros(()), 1.0).expand(shape).to_event(len(shape)))

    return MeanField(program, init_scale=0.5)


@pytest.fixture
def composite():
    return Composite({"0.weight": part("0.weight", (2, 3)), "0.bias": part("0.bias", (2,))})


def test_composite_samples_its_parts_in_order(composite):
    trace = poutine.trace(composite).get_trace()
    sites = [name for name, site in trace.nodes.items() if site["type"] == "sample"]
    assert sites == ["0.weight", "0.bias"]
    assert composite["0.weight"].names == ["0.weight"]


def test_composite_draws_every_part_at_once(composite):
    shapes = {name: tuple(value.shape) for name, value in composite.draw(5).items()}
    assert shapes == {"0.weight": (5, 2, 3), "0.bias": (5, 2)}


def test_state_of_a_composite_can_be_stored_and_restored(composite):
    other = Composite({"0.weight": part("0.weight", (2, 3)), "0.bias": part("0.bias", (2,))})
    for parameter in composite.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(composite.state_dict())
    torch.manual_seed(1)
    expected = composite.draw(3)
    torch.manual_seed(1)
    found = other.draw(3)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_parameters_are_announced_to_pyro_only_when_they_are_not_module_local(composite):
    with pyro.settings.context(module_local_params=True):
        composite()
    assert len(pyro.get_param_store()) == 0
    with pyro.settings.context(module_local_params=False):
        composite()
    assert len(pyro.get_param_store()) == len(list(composite.parameters()))


def test_drawing_leaves_no_trace(composite):
    trace = poutine.trace(lambda: composite.draw(3)).get_trace()
    assert [n for n, site in trace.nodes.items() if site["type"] == "sample"] == []


def test_public_names_are_guides():
    public = {name: getattr(guides, name) for name in guides.__all__}
    helpers = {name for name, value in public.items() if not issubclass(value, Guide)}
    assert helpers == {"LocScale"}
