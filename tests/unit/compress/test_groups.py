import math

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo.infer.pruning.groups import (
    MAX_LISTED,
    RELAXATIONS,
    TOLERATED_LOSS,
    GroupView,
    SlotGroups,
    count_weights,
    group_view,
    otsu_threshold,
)
from zoo.network.nets import mlp


def test_threshold_lies_in_the_middle_of_the_gap_between_two_clusters():
    scores = np.array([5.1, 0.2, 4.9, 0.0, 0.1, 5.0])
    assert otsu_threshold(scores) == pytest.approx((0.2 + 4.9) / 2)


def test_one_outlier_does_not_hide_two_clusters():
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(0, 0.3, 50), rng.normal(6, 0.3, 50), [13.0]])
    # The widest gap is the one below the outlier; the threshold is not there.
    assert 1.5 < otsu_threshold(scores) < 4.5


def test_threshold_minimises_the_variance_within_the_two_sides():
    rng = np.random.default_rng(0)
    scores = np.sort(rng.gamma(0.7, size=40))

    def within(split):
        return split * scores[:split].var() + (40 - split) * scores[split:].var()

    best = min(range(1, 40), key=within)
    assert otsu_threshold(scores) == pytest.approx((scores[best - 1] + scores[best]) / 2)


@pytest.mark.parametrize("scores", [[], [3.0], [2.0, 2.0, 2.0]])
def test_scores_without_two_clusters_prune_nothing(scores):
    assert otsu_threshold(np.array(scores)) == math.inf


def test_two_scores_are_two_clusters():
    assert otsu_threshold(np.array([1.0, 0.0])) == 0.5


def groups_of(shape, keep):
    scores = np.where(keep, 0.0, 1.0)
    return SlotGroups(scores, 0.5, torch.Size(shape))


def horseshoe(net):
    return zoo.create("group_horseshoe", net, likelihood="categorical", num_data=10)


@pytest.mark.parametrize(
    ("hidden_kept", "inputs_kept", "left"),
    [
        # 4-3-2: a dead unit loses its 2 outgoing and 4 incoming weights.
        ([True, True, True], [True] * 4, 12 + 6),
        ([True, False, True], [True] * 4, 8 + 4),
        ([False, False, True], [True] * 4, 4 + 2),
        ([True, True, True], [True, False, True, True], 9 + 6),
        ([True, False, True], [True, False, False, True], 4 + 4),
    ],
)
def test_pruned_unit_of_an_mlp_takes_its_incoming_weights_with_it(hidden_kept, inputs_kept, left):
    model = horseshoe(mlp([4, 3, 2]))
    groups = {
        "0.weight": groups_of((1, 4), inputs_kept),
        "2.weight": groups_of((1, 3), hidden_kept),
    }
    assert count_weights(model, groups, torch.zeros(1, 4)) == (18, left)


def test_units_with_few_inputs_left_are_counted():
    model = horseshoe(mlp([64, 100, 50, 10]))
    kept = {"0.weight": (64, 27), "2.weight": (100, 12), "4.weight": (50, 8)}
    groups = {
        name: groups_of((1, total), np.arange(total) < left) for name, (total, left) in kept.items()
    }
    counted = count_weights(model, groups, torch.zeros(1, 64))
    assert counted == (11_900, 27 * 12 + 12 * 8 + 8 * 10)


def test_pruned_filters_of_a_convolution_take_what_listens_to_them_with_them():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2)
    )
    groups = {"0.weight": groups_of((4, 1, 1, 1), [True, False, True, True])}
    model = horseshoe(net)
    # One of 4 filters: its 9 weights, and the 9 positions of its map in both outputs.
    counted = count_weights(model, groups, torch.zeros(1, 1, 5, 5))
    assert counted == (36 + 72, 27 + 54)


def test_filter_with_a_bias_still_speaks_when_its_weights_are_gone():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 2))
    groups = {"0.weight": groups_of((4, 1, 1, 1), [True, False, True, True])}
    counted = count_weights(horseshoe(net), groups, torch.zeros(1, 1, 5, 5))
    # The masked weights could not matter, the constant map they leave behind does.
    assert counted == (108, 27 + 72)


def test_counting_uses_random_numbers_of_its_own():
    model = horseshoe(mlp([4, 3, 2]))
    state = torch.get_rng_state()
    weights = {name: p.clone() for name, p in model.net.named_parameters()}
    count_weights(model, {}, torch.zeros(1, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, weights[name]) for name, p in model.net.named_parameters())


def test_best_group_is_always_kept():
    group = SlotGroups(np.array([3.0, 2.0, 5.0]), -1.0, torch.Size([1, 3]))
    assert group.keep.tolist() == [False, True, False]


def test_view_prunes_draws_and_describes_itself_in_plain_types():
    groups = {"0.weight": groups_of((1, 3), [True, False, True])}
    view = GroupView(groups, num_weights=12, weights_left=3, relaxed=2)
    draws = {"0.weight": torch.ones(5, 4, 3), "0.bias": torch.ones(5, 4)}
    pruned = view.prune(draws)
    assert pruned["0.weight"].sum((0, 1)).tolist() == [20.0, 0.0, 20.0]
    assert torch.equal(pruned["0.bias"], draws["0.bias"])
    assert draws["0.weight"].min() == 1
    assert view.weights_left_percent == 25.0
    assert view.to_dict() == {
        "weights_left_percent": 25.0,
        "relaxed": 2,
        "relaxations": RELAXATIONS,
        "slots": {
            "0.weight": {
                "groups": 3,
                "kept": 2,
                "threshold": 0.5,
                "scores": [0.0, 1.0, 0.0],
                "pruned": [1],
            }
        },
    }


def test_view_without_groups_leaves_everything():
    assert GroupView({}, num_weights=12, weights_left=0).weights_left_percent == 100.0


@torch.no_grad()
def switch_off(guide, slot, groups):
    """Move the scales of some groups far towards zero."""
    part = guide[slot]
    part[f"{slot}_local_a"].loc[groups] -= 8.0
    part[f"{slot}_local_b"].loc[groups] -= 8.0


@pytest.fixture
def switched_off():
    model = horseshoe(mlp([4, 3, 2]))
    guide = model.guide(init_scale=0.01)
    switch_off(guide, "0.weight", [1])
    switch_off(guide, "2.weight", [0])
    return model, guide


def test_view_finds_the_groups_that_the_posterior_has_switched_off(switched_off):
    view = group_view(*switched_off, torch.zeros(1, 4))
    assert view.to_dict()["slots"]["0.weight"]["pruned"] == [1]
    assert view.to_dict()["slots"]["2.weight"]["pruned"] == [0]
    # 3 live inputs times 2 live units, and 2 units times 2 outputs
    assert (view.num_weights, view.weights_left, view.relaxed) == (18, 3 * 2 + 2 * 2, 0)


def test_cheap_pruning_is_kept(switched_off):
    view = group_view(
        *switched_off,
        torch.zeros(1, 4),
        score=lambda view: 0.0 if view is None else -0.9 * TOLERATED_LOSS,
    )
    assert view.relaxed == 0
    assert view.weights_left == 10


def test_costly_pruning_is_taken_back_step_by_step(switched_off):
    seen = []

    def score(view):
        if view is None:
            return 0.0
        seen.append(view.weights_left)
        return 0.0 if view.weights_left == view.num_weights else -1.0

    view = group_view(*switched_off, torch.zeros(1, 4), score=score)
    assert view.relaxed == RELAXATIONS
    assert view.weights_left == view.num_weights == 18
    assert len(seen) == RELAXATIONS + 1
    assert seen == sorted(seen)


def test_posterior_without_groups_has_nothing_to_prune():
    model = zoo.create("mean_field", mlp([4, 3, 2]), likelihood="categorical", num_data=10)
    view = group_view(model, model.guide(init_scale=0.01), torch.zeros(1, 4), score=lambda _: 0.0)
    assert view.groups == {}
    assert view.weights_left_percent == 100.0


def test_horseshoe_on_biases_as_well_can_be_pruned():
    model = zoo.create(
        "group_horseshoe",
        mlp([4, 3, 2]),
        likelihood="categorical",
        num_data=10,
        priors={"*": "GroupHorseshoe"},
    )
    guide = model.guide(init_scale=0.01)
    switch_off(guide, "2.weight", [0])
    switch_off(guide, "0.bias", [0])
    view = group_view(model, guide, torch.zeros(1, 4))
    assert view.to_dict()["slots"]["0.bias"]["pruned"] == [0]
    assert (view.num_weights, view.weights_left) == (18, 4 * 2 + 2 * 2)


@torch.no_grad()
def with_scores(method, ratios):
    """Return a model and a guide whose weights have these ratios of mean to sd, by slot."""
    model = zoo.create(method, mlp([4, 3, 2]), likelihood="categorical", num_data=10)
    guide = model.guide(init_scale=0.1)
    for slot, ratio in ratios.items():
        posterior = guide[slot][slot]
        if method == "empirical_bayes":
            posterior.gamma.copy_(ratio)
        else:
            posterior.loc.copy_(0.1 * ratio)
    return model, guide


#: Below this ratio of mean to sd the method's own threshold prunes a weight.
LIMITS = {"sparse_vd": 0.2231, "empirical_bayes": 0.2231, "graves": 0.6105}


@pytest.mark.parametrize("method", LIMITS)
def test_single_weights_are_pruned_by_the_threshold_of_the_method(method):
    limit = LIMITS[method]
    first, second = torch.full((3, 4), 1.01 * limit), torch.full((2, 3), -1.01 * limit)
    first[0, 1], first[2, 3], second[1, 2] = 0.99 * limit, -0.99 * limit, 0.0
    model, guide = with_scores(method, {"0.weight": first, "2.weight": second})
    view = group_view(model, guide, torch.zeros(1, 4))
    slots = view.to_dict()["slots"]
    assert slots["0.weight"]["pruned"] == [1, 11]
    assert slots["2.weight"]["pruned"] == [5]
    assert slots["0.weight"]["threshold"] == guide["0.weight"].default_threshold
    assert (view.num_weights, view.weights_left) == (18, 18 - 3)
    draws = {name: torch.ones(5, *slot.shape) for name, slot in model.slots.items()}
    assert torch.equal(view.prune(draws)["0.weight"][3] == 0, first.abs() < limit)


def test_unit_that_loses_every_outgoing_weight_takes_the_incoming_ones_with_it():
    second = torch.full((2, 3), 5.0)
    second[:, 1] = 0.0
    model, guide = with_scores(
        "sparse_vd", {"0.weight": torch.full((3, 4), 5.0), "2.weight": second}
    )
    view = group_view(model, guide, torch.zeros(1, 4))
    assert (view.num_weights, view.weights_left) == (18, 18 - 2 - 4)


def test_guide_of_normal_jeffreys_is_split_into_clusters_of_units():
    model = zoo.create(
        "group_normal_jeffreys", mlp([4, 3, 2]), likelihood="categorical", num_data=10
    )
    guide = model.guide(init_scale=0.01)
    with torch.no_grad():
        guide["0.weight"]["0.weight_z"].loc[2] = 1e-3
        guide["2.weight"]["2.weight_z"].loc[0] = 1e-3
    view = group_view(model, guide, torch.zeros(1, 4))
    assert view.to_dict()["slots"]["0.weight"]["pruned"] == [2]
    assert (view.num_weights, view.weights_left) == (18, 3 * 2 + 2 * 2)


def test_very_many_groups_are_described_by_their_sorted_scores():
    scores = np.random.default_rng(0).normal(size=50 * MAX_LISTED)
    group = SlotGroups(scores, 0.5, torch.Size([50, MAX_LISTED]))
    described = GroupView({"w": group}, len(scores), 1).to_dict()["slots"]["w"]
    assert described["groups"] == len(scores)
    assert described["kept"] == (scores <= 0.5).sum()
    assert "pruned" not in described
    listed = described["scores"]
    assert len(listed) == MAX_LISTED
    assert listed == sorted(listed)
    np.testing.assert_allclose([listed[0], listed[-1]], [scores.min(), scores.max()], rtol=1e-5)
    assert listed[MAX_LISTED // 2] == pytest.approx(np.median(scores), abs=0.01)
