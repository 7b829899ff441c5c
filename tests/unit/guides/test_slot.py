"""Guides of one slot: how their sites are named, and states of earlier versions."""

import pytest
import torch

from guides import Composite, LocScale
from guides.empirical_bayes import EmpiricalBayesGuide
from guides.group_horseshoe import GroupHorseshoeGuide
from guides.quantized import QuantizedGuide
from guides.sparse_vd import SparseVDGuide
from guides.structured_bp import StructuredBPGuide

pytestmark = pytest.mark.usefixtures("double_precision")
SLOT = "0.weight"


def guide_of(cls):
    start = torch.rand(2, 3)
    if cls is GroupHorseshoeGuide:
        return cls(SLOT, start, global_scale=0.1, group_shape=torch.Size([1, 3]))
    if cls is QuantizedGuide:
        return cls(SLOT, start, codebook=torch.tensor([-0.2, 0.0, 0.2]), init_scale=0.1)
    if cls is StructuredBPGuide:
        return cls(SLOT, start, low=-20.0, high=0.0)
    return cls(SLOT, start)


def test_parameters_of_a_site_are_the_attribute_of_its_part():
    horseshoe, plain = guide_of(GroupHorseshoeGuide), guide_of(SparseVDGuide)
    assert horseshoe[f"{SLOT}_local_a"] is horseshoe.local_a
    assert plain[SLOT] is plain.w
    assert isinstance(plain.w, LocScale)
    assert horseshoe.names == [
        f"{SLOT}_{part}" for part in ("global_a", "global_b", "local_a", "local_b", "base")
    ]
    torch.testing.assert_close(plain.distributions()[SLOT].mean, plain.w.loc)


def test_location_and_scale_start_where_they_are_told():
    part = LocScale(torch.tensor([0.5, -1.0]), 0.2)
    torch.testing.assert_close(part.scale.detach(), torch.full((2,), 0.2))
    part.fix_scale()
    assert [name for name, _ in part.named_parameters()] == ["loc"]
    torch.testing.assert_close(part.scale, torch.full((2,), 0.2))


def in_the_old_order(name):
    """Return the key that a parameter once had: parameters were filed by site."""
    prefix, slot = f"parts.@{SLOT.replace('.', '/')}.", SLOT.replace(".", "/")
    part, dot, leaf = name.removeprefix(prefix).partition(".")
    if not dot:  # a buffer of the guide itself
        return name
    site = slot if part == "w" else f"{slot}_{part}"
    return f"{prefix}sites.@{site}.{leaf}"


@pytest.mark.parametrize(
    "cls",
    [GroupHorseshoeGuide, SparseVDGuide, EmpiricalBayesGuide, QuantizedGuide, StructuredBPGuide],
)
def test_states_of_earlier_versions_are_read(cls):
    first, second = (Composite({SLOT: guide_of(cls)}) for _ in range(2))
    state = {in_the_old_order(name): value for name, value in first.state_dict().items()}
    assert any("sites.@0/weight" in name for name in state)
    assert not set(first.state_dict()) <= set(state)
    second.load_state_dict(state)
    for (name, old), new in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(old, new), name
