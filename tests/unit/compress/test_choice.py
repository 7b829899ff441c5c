import math

import numpy as np
import pytest
import torch

import zoo
from zoo.compress.choice import choose_by_threshold, choose_by_tolerance
from zoo.errors import PriorError, ZooError
from zoo.infer.pruning.groups import masked
from zoo.network.nets import mlp


@pytest.fixture
def fitted():
    """A horseshoe network whose scales are spread out evenly, and a few rows."""
    model = zoo.create("group_horseshoe", mlp([6, 5, 2]), likelihood="categorical", num_data=10)
    guide = model.guide(init_scale=0.01)
    with torch.no_grad():
        for slot in ("0.weight", "2.weight"):
            local = guide[slot][f"{slot}_local_a"].loc
            local -= torch.linspace(0, 8, len(local))
    return model, guide, torch.zeros(2, 6)


def kept(choice):
    return {name: group.keep.sum() for name, group in choice.view.groups.items()}


def test_threshold_for_all_slots(fitted):
    choice = choose_by_threshold(*fitted, 2.0)
    # Scores grow from about 0 to 4 in steps of 0.8 and of 1.
    assert kept(choice) == {"0.weight": 3, "2.weight": 2}
    assert choice.to_dict()["rule"] == "threshold"
    assert choice.to_dict()["slots"]["0.weight"] == {"threshold": 2.0, "groups": 6, "kept": 3}


def test_threshold_by_pattern_leaves_other_slots_alone(fitted):
    assert kept(choose_by_threshold(*fitted, {"2.*": 2.0})) == {"0.weight": 6, "2.weight": 2}
    assert kept(choose_by_threshold(*fitted, math.inf)) == {"0.weight": 6, "2.weight": 5}
    assert kept(choose_by_threshold(*fitted, -math.inf)) == {"0.weight": 1, "2.weight": 1}


def test_bad_thresholds_are_refused(fitted):
    with pytest.raises(PriorError, match=r"threshold pattern '7.weight' matches no slot"):
        choose_by_threshold(*fitted, {"7.weight": 2.0})
    with pytest.raises(ZooError, match="must be a number"):
        choose_by_threshold(*fitted, math.nan)


def cost_of(costs):
    """Return a cost that adds up a price for every group that is pruned, counted from the worst."""

    def cost(groups):
        total = 1.0
        for name, group in groups.items():
            order = np.argsort(-group.scores)
            total += sum(
                price for price, k in zip(costs[name], order, strict=False) if not group.keep[k]
            )
        return total

    return cost


@pytest.mark.parametrize(
    ("prices", "tolerance", "left"),
    [
        ({"0.weight": [0, 0, 0, 1, 1], "2.weight": [0, 0, 1, 1]}, 0.5, (3, 3)),
        ({"0.weight": [1, 1, 1, 1, 1], "2.weight": [0, 0, 0, 0]}, 0.5, (6, 1)),
        ({"0.weight": [1, 1, 1, 1, 1], "2.weight": [1, 1, 1, 1]}, 0.0, (6, 5)),
        ({"0.weight": [0] * 5, "2.weight": [0] * 4}, 0.0, (1, 1)),
        ({"0.weight": [0.1] * 5, "2.weight": [1, 1, 1, 1]}, 0.25, (4, 5)),
    ],
)
def test_tolerance_is_used_up_and_kept(fitted, prices, tolerance, left):
    cost = cost_of(prices)
    choice = choose_by_tolerance(*fitted, tolerance, cost)
    assert cost(choice.view.groups) <= 1.0 + tolerance
    assert kept(choice) == dict(zip(("0.weight", "2.weight"), left, strict=True))


@pytest.mark.parametrize("tolerance", [-0.1, math.nan])
def test_bad_tolerances_are_refused(fitted, tolerance):
    with pytest.raises(ZooError, match="zero or more"):
        choose_by_tolerance(*fitted, tolerance, cost_of({}))


def test_posterior_without_scores_has_no_threshold():
    model = zoo.create("mean_field", mlp([6, 2]), likelihood="categorical", num_data=10)
    with pytest.raises(ZooError, match="does not score groups"):
        choose_by_threshold(model, model.guide(init_scale=0.01), torch.zeros(2, 6), 3.0)


def test_masks_remove_what_is_not_finite(fitted):
    groups = choose_by_threshold(*fitted, 2.0).view.groups
    values = {"0.weight": torch.full((5, 6), math.inf), "2.weight": torch.ones(2, 5)}
    pruned = masked(values, groups)["0.weight"]
    assert (pruned == 0).sum() == 3 * 5
