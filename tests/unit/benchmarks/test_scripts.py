"""The rivals of the benchmarks do the same mathematics."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zoo
from benchmarks import gallery, handwritten, peers
from zoo.infer.svi.objective import Objective, total_divergence


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


CONTESTANTS = [
    pytest.param(library, build, id=name)
    for library, peer in peers.PEERS.items()
    for name, build in peer.contestants.items()
]


@pytest.fixture(scope="module")
def missing_peers():
    return peers.missing()


@pytest.fixture
def skip_missing(library, missing_peers):
    if library in missing_peers:
        pytest.skip(f"{library} is not installed: {missing_peers[library]}")


def small_classifier():
    """Return a network with a convolution and dense layers, and a batch of eight."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )
    return net, torch.randn(8, 36), torch.randint(3, (8,))


def two_parts(build, net, x, y, init_scale, num_draws):
    """Return draws of the cross entropy and of the divergence in a contestant's loss.

    With the same draw, L(N) = N * cross entropy + divergence for both sizes N of the data set.
    """
    losses = []
    for num_data in (20, 40):
        loss = build(net, x, y, num_data, init_scale).loss
        torch.manual_seed(1)
        with torch.no_grad():
            losses.append(torch.stack([loss() for _ in range(num_draws)]))
    once, twice = losses
    return (twice - once) / 20, 2 * once - twice


@pytest.mark.parametrize(("library", "build"), CONTESTANTS)
@pytest.mark.usefixtures("skip_missing", "module_local_params")
def test_step_of_a_peer_moves_every_parameter(library, build):
    net, x, y = small_classifier()
    parameters, loss, _ = build(net, x, y, 20)
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.Adam(parameters, fused=True)
    value = loss()
    value.backward()
    optimizer.step()
    assert value.shape == ()
    assert value.isfinite()
    assert sum(parameter.numel() for parameter in parameters) == 2 * sum(
        parameter.numel() for parameter in net.parameters()
    )
    for old, new in zip(before, parameters, strict=True):
        assert not torch.equal(old, new)
        assert new.isfinite().all()


@pytest.mark.parametrize(("library", "build"), CONTESTANTS)
@pytest.mark.usefixtures("skip_missing", "module_local_params", "double_precision")
def test_peer_with_tiny_scales_has_the_loss_of_the_network(library, build):
    net, x, y = small_classifier()
    cross_entropy, _ = two_parts(build, net, x, y, init_scale=1e-5, num_draws=1)
    # Logits move by about 1e-5 times the norm of a layer's input, below 10 in this network.
    deterministic = F.cross_entropy(net(x), y).detach()
    assert float(cross_entropy) == pytest.approx(float(deterministic), abs=3e-4)


@pytest.mark.parametrize(("library", "build"), CONTESTANTS)
@pytest.mark.usefixtures("skip_missing", "module_local_params", "double_precision")
def test_divergence_of_a_peer_is_the_closed_form(library, build):
    net, x, y = small_classifier()
    scale = 0.2
    _, draws = two_parts(build, net, x, y, init_scale=scale, num_draws=50)
    exact = sum(
        float(0.5 * (scale**2 + p.detach().square() - 2 * math.log(scale) - 1).sum())
        for p in net.parameters()
    )
    # Estimates by one draw have a standard error; closed forms only round. Priors of blitz have
    # 1e-6 added to their density.
    error = float(draws.std()) / math.sqrt(len(draws))
    assert float(draws.mean()) == pytest.approx(exact, abs=5 * error + 1e-5 * exact)


def test_gallery_shows_a_small_picture_of_each_method_and_says_when_it_fails():
    page = (gallery.FOLDER.parent / "gallery.md").read_text(encoding="utf-8")
    for method in gallery.PICTURES:
        assert method in zoo.list_models()
        assert page.count(f"![{method}](gallery/{method}.png)\n\n**Fails** ") == 1
        assert (gallery.FOLDER / f"{method}.png").stat().st_size < 100_000
