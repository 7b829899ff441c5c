"""Without the private names of torch that guides use, the public ways give the same bits."""

import sys

import pytest
import torch
from torch.distributions import Normal

from guides.lazy import LazySample
from guides.simplex import Dirichlet

#: Private names that were asked for in vain.
HIDDEN: list[str] = []


def hide_from_guides(patch, owner, name, error):
    """Hide a name from guides alone, because the public way calls it too."""
    original = getattr(owner, name)

    def hidden(*args):
        if sys._getframe(1).f_globals["__name__"].startswith("guides"):
            HIDDEN.append(name)
            raise error(name)
        return original(*args)

    patch.setattr(owner, name, hidden)


@pytest.fixture(autouse=True)
def nothing_hidden():
    HIDDEN.clear()


def drawn():
    torch.manual_seed(0)
    concentration = torch.full((20, 4), 0.3).requires_grad_()
    value = Dirichlet(concentration).rsample()
    value.square().sum().backward()
    return value.detach(), concentration.grad


@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_a_dirichlet_draw_and_its_gradient_are_the_same(monkeypatch, error):
    wanted = drawn()
    hide_from_guides(monkeypatch, torch, "_standard_gamma", error)
    found = drawn()
    assert HIDDEN
    assert all(torch.equal(own, other) for own, other in zip(found, wanted, strict=True))


def lazy_sample():
    return LazySample(Normal(torch.zeros(2, 3), torch.ones(2, 3)), "w")


@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_questions_about_a_lazy_sample_do_not_draw_it(monkeypatch, error):
    hide_from_guides(monkeypatch, torch._C, "DisableTorchFunctionSubclass", error)
    sample = lazy_sample()
    assert (sample.shape, sample.dim(), sample.numel(), len(sample)) == ((2, 3), 2, 6, 2)
    assert sample.dtype is torch.float32
    assert sample.device.type == "cpu"
    assert isinstance(sample.shape, torch.Size)
    assert HIDDEN
    assert sample.drawn is None
