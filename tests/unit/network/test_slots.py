import pytest
import torch
from torch import nn

from zoo.errors import PriorError, ZooError
from zoo.network.slots import Slot, assign, choose_bayesian, network_slots


@pytest.fixture
def net():
    return nn.ModuleDict(
        {
            "stem": nn.Conv2d(3, 8, 3),
            "norm": nn.BatchNorm2d(8),
            "body": nn.Sequential(nn.Conv1d(2, 4, 3), nn.LayerNorm(4), nn.GroupNorm(2, 4)),
            "head": nn.Linear(8, 2),
            "table": nn.Embedding(5, 3),
            "rms": nn.RMSNorm(4),
        }
    )


KINDS = {
    "stem.weight": "convolution",
    "stem.bias": "convolution",
    "norm.weight": "normalisation",
    "norm.bias": "normalisation",
    "body.0.weight": "convolution",
    "body.0.bias": "convolution",
    "body.1.weight": "normalisation",
    "body.1.bias": "normalisation",
    "body.2.weight": "normalisation",
    "body.2.bias": "normalisation",
    "head.weight": "linear",
    "head.bias": "linear",
    "table.weight": "other",
    "rms.weight": "normalisation",
}


def test_every_parameter_is_a_slot_that_knows_its_layer(net):
    assert {slot.name: slot.layer for slot in network_slots(net)} == KINDS
    for slot, (name, parameter) in zip(network_slots(net), net.named_parameters(), strict=True):
        assert slot.name == name
        assert torch.equal(slot.value, parameter)
        assert not slot.value.requires_grad
        assert not slot.positive


def test_parameter_of_the_network_itself_is_a_slot():
    net = nn.Linear(3, 2)
    net.gain = nn.Parameter(torch.ones(()))
    slots = {slot.name: slot.layer for slot in network_slots(net)}
    assert slots == {"weight": "linear", "bias": "linear", "gain": "linear"}


@pytest.mark.parametrize(
    ("layer", "shape", "grouping", "expected"),
    [
        ("linear", (3, 4), "auto", (1, 4)),
        ("linear", (3, 4), "input", (1, 4)),
        ("linear", (3, 4), "output", (3, 1)),
        ("linear", (3, 4), "element", (3, 4)),
        ("linear", (3,), "auto", (3,)),
        ("linear", (3,), "output", (3,)),
        ("convolution", (5, 2, 3, 3), "auto", (5, 1, 1, 1)),
        ("convolution", (5, 2, 3, 3), "input", (1, 2, 1, 1)),
        ("convolution", (5, 2, 3), "output", (5, 1, 1)),
        ("convolution", (5,), "auto", (5,)),
        ("other", (3, 4), "auto", (3, 4)),
        ("other", (3, 4), "input", (1, 4)),
        ("other", (), "auto", ()),
    ],
)
def test_group_shape_broadcasts_against_the_parameter(layer, shape, grouping, expected):
    slot = Slot("w", torch.zeros(shape), layer)
    assert slot.group_shape(grouping) == expected
    assert torch.broadcast_shapes(slot.group_shape(grouping), shape) == shape


def test_everything_but_normalisation_is_bayesian_by_default(net):
    chosen = [slot.name for slot in choose_bayesian(network_slots(net), None)]
    assert chosen == [name for name, kind in KINDS.items() if kind != "normalisation"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["head.*"], ["head.weight", "head.bias"]),
        (["head.bias", "stem.bias"], ["stem.bias", "head.bias"]),
        (["norm.*"], ["norm.weight", "norm.bias"]),
        (["*"], list(KINDS)),
    ],
)
def test_patterns_choose_what_is_bayesian_in_the_order_of_the_network(net, patterns, expected):
    chosen = choose_bayesian(network_slots(net), patterns)
    assert [slot.name for slot in chosen] == expected


def test_pattern_without_a_slot_and_no_pattern_at_all_are_refused(net):
    slots = network_slots(net)
    with pytest.raises(PriorError, match=r"Bayesian pattern 'haed\.\*' matches no slot"):
        choose_bayesian(slots, ["haed.*"])
    with pytest.raises(ZooError, match="no parameter is Bayesian"):
        choose_bayesian(slots, [])


def test_slot_of_the_likelihood_answers_to_its_full_name_only():
    noise = Slot("noise", torch.ones(()), "likelihood", positive=True, by_name=True)
    assert noise.matches("noise")
    assert not any(noise.matches(pattern) for pattern in ("*", "nois?", "noise*", "[n]oise"))


def test_case_of_patterns_matters():
    assert not Slot("W", torch.zeros(1)).matches("w")
    assert Slot("W", torch.zeros(1)).matches("?")


def test_last_matching_pattern_wins(net):
    assigned = assign({"*": 1, "head.*": 2, "head.bias": 3}, network_slots(net))
    assert assigned["stem.weight"] == 1
    assert assigned["head.weight"] == 2
    assert assigned["head.bias"] == 3
    assert assign({"head.bias": 3, "*": 1}, network_slots(net))["head.bias"] == 1


def test_long_list_of_slots_is_cut_in_the_message(net):
    with pytest.raises(PriorError, match=r", \.\.\.\. Did you mean 'head\.bias'") as caught:
        assign({"head.bia": 1}, network_slots(net))
    assert str(caught.value).count(",") == 12
