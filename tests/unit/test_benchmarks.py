"""The rivals of the benchmarks do the same mathematics."""

import pytest
import torch
from torch import nn

import zoo
from benchmarks import handwritten
from zoo.infer.objective import Objective, total_divergence


def pair(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model = zoo.create(method, net, likelihood="categorical", num_data=20)
    # A log variance of -9 is a standard deviation of exp(-4.5).
    return net, model, model.guide(init_scale=float(torch.tensor(-4.5).exp()))


@pytest.mark.parametrize("method", handwritten.LAYERS)
def test_handwritten_divergence_is_that_of_the_zoo(method):
    net, model, guide = pair(method)
    rival = handwritten.bayesian(net, method, local=True).double()
    layers = [layer for layer in rival if isinstance(layer, handwritten.BayesianLayer)]
    assert sum(float(layer.kl().detach()) for layer in layers) == pytest.approx(
        total_divergence(model, guide), rel=1e-6
    )


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("method", handwritten.LAYERS)
def test_handwritten_loss_has_the_mean_of_the_zoo(method, local):
    net, model, guide = pair(method)
    rival = handwritten.bayesian(net, method, local=local).double()
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(2, (20,))
    objective = Objective(model, guide, local=local)
    with torch.no_grad():
        ours = torch.stack([objective(x, y) for _ in range(300)])
        theirs = torch.stack([handwritten.loss(rival, x, y, 20) for _ in range(300)])
    error = ((ours.var() + theirs.var()) / 300).sqrt()
    assert abs(ours.mean() - theirs.mean()) < 5 * error
