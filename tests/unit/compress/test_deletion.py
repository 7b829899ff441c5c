import pytest
import torch
from torch import nn

import zoo
from zoo.errors import CompressionError
from zoo.infer.predict.draws import draw_posterior
from zoo.network.nets import mlp
from zoo.robustness.deletion import deletion_order

pytestmark = pytest.mark.usefixtures("double_precision")


def fitted(method, net=None):
    torch.manual_seed(0)
    model = zoo.create(method, net or mlp([3, 4, 2]), likelihood="categorical", num_data=20)
    guide = model.guide(init_scale=0.2)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model, guide


def deleted(order, model, guide, fraction):
    values = draw_posterior(model, guide, 2, seed=0).slots
    return values, order.delete(model, values, fraction)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 1.0])
def test_weights_go_in_the_order_of_their_means_in_standard_deviations(fraction):
    model, guide = fitted("mean_field")
    order = deletion_order(model, guide, seed=0)
    assert order.ranking == "signal_to_noise"
    before, after = deleted(order, model, guide, fraction)
    ratios = []  # brute force: sort all weights of both layers
    for name in ("0.weight", "2.weight"):
        posterior = guide[name][name]
        ratio = (posterior.loc.abs() / posterior.log_scale.exp()).detach()
        ratios += [(float(r), name, i) for i, r in enumerate(ratio.flatten())]
    gone = {(name, i) for _, name, i in sorted(ratios)[: round(fraction * len(ratios))]}
    for name in ("0.weight", "2.weight"):
        for i, (old, new) in enumerate(
            zip(before[name].flatten(1).T, after[name].flatten(1).T, strict=True)
        ):
            assert torch.equal(new, torch.zeros_like(old) if (name, i) in gone else old)
    for name in ("0.bias", "2.bias"):
        assert torch.equal(after[name], before[name])


def test_a_method_that_scores_weights_deletes_by_its_scores():
    model, guide = fitted("sparse_vd")
    order = deletion_order(model, guide, seed=0)
    assert order.ranking == "method"
    for name, score in order.scores.items():
        torch.testing.assert_close(score.flatten(), guide[name].group_scores())


def test_groups_score_all_of_their_weights():
    model, guide = fitted("group_horseshoe")
    score = deletion_order(model, guide, seed=0).scores["0.weight"]
    assert score.shape == (4, 3)
    torch.testing.assert_close(score, score[:1].expand(4, 3))


def test_points_go_by_size():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model, guide = fitted("stochastic_batch_norm", net)
    order = deletion_order(model, guide, seed=0)
    assert order.ranking == "magnitude"
    _, after = deleted(order, model, guide, 0.5)
    sizes = torch.cat([model.net.get_parameter(n).abs().flatten() for n in order.scores])
    limit = float(sizes.detach().median())
    for name in order.scores:
        weight = model.net.get_parameter(name).detach()
        expected = weight.where(weight.abs() > limit, 0.0)
        torch.testing.assert_close(after[name][0], expected)


def test_wrong_requests_are_explained():
    model, guide = fitted("mean_field")
    with pytest.raises(CompressionError, match="unknown ranking of weights 'size'"):
        deletion_order(model, guide, "size", seed=0)
    with pytest.raises(CompressionError, match="cannot be ranked by 'method'"):
        deletion_order(model, guide, "method", seed=0)
    with pytest.raises(CompressionError, match=r"must be in \[0, 1\]"):
        deletion_order(model, guide, seed=0).delete(model, {}, 1.5)
