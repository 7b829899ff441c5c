"""Networks that are trained already: nothing about them changes but that they vary."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import zoo
from zoo.errors import ConfigError


class Residual(nn.Module):
    """Not a `Sequential`, and with dropout."""

    def __init__(self, num_outputs=3):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, num_outputs)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.block(h)
        return self.head(self.dropout(h.mean((2, 3))))


@pytest.fixture
def images():
    return torch.randn(40, 1, 6, 6)


def test_network_is_left_alone_and_predictions_vary(images):
    net = Residual().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = zoo.stochastic_batch_norm(net, images, batch_size=8, num_batches=20)
    prediction = random.predict(images[:3], num_samples=7)
    assert prediction.probabilities.shape == (3, 3)
    assert prediction.samples.shape == (7, 3)
    assert prediction.classes == ("0", "1", "2")
    assert (prediction.epistemic > 0).all()
    f = random.outputs(images[:3], num_samples=7)
    assert f.shape == (7, 3, 3)
    assert f.std(0).gt(0).all()
    np.testing.assert_allclose(
        prediction.probabilities, f.softmax(-1).mean(0), rtol=1e-5, atol=1e-6
    )
    assert net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
        if name in dict(net.named_parameters()):
            assert torch.equal(random.model.net.state_dict()[name], value)


def test_a_channel_that_was_always_dead_can_be_started_from(images):
    net = Residual()
    nn.init.zeros_(net.stem.weight[1])
    nn.init.zeros_(net.block[0].running_var[1:2])
    noisy = zoo.stochastic_batch_norm(net, images, batch_size=8, num_batches=9)
    assert noisy.outputs(images[:2], 5).isfinite().all()


def test_the_same_seed_gives_the_same_draws(images):
    net = Residual()
    first, again, other = (
        zoo.stochastic_batch_norm(net, images, batch_size=8, num_batches=9, seed=seed).outputs(
            images[:2], 5
        )
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_larger_batches_leave_less_noise(images):
    spread = [
        zoo.stochastic_batch_norm(Residual(), images, batch_size=size, num_batches=100)
        .draws(2000)
        .slots["block.0.running_mean"]
        .var(0)
        .mean()
        for size in (4, 16)
    ]
    # Of independent rows the variance falls as one over their number; without replacement faster.
    assert spread[0] > 3 * spread[1]


def test_batches_of_a_loader_are_taken_as_they_come(images):
    net = Residual()
    loader = DataLoader(TensorDataset(images, torch.zeros(40)), batch_size=16)
    random = zoo.stochastic_batch_norm(net, loader, num_batches=5)
    assert int(random.model.num_batches) == 5
    with torch.no_grad():
        means = torch.stack([net.stem(x).mean((0, 2, 3)) for x in images[:32].split(16)])
    # Two full batches over and over: the smaller third is left out.
    weights = torch.tensor([3.0, 2.0])[:, None] / 5
    law = random.guide["block.0.running_mean"]["block.0.running_mean"]
    torch.testing.assert_close(law.loc.data, (weights * means).sum(0), rtol=1e-4, atol=1e-5)


def test_batches_that_can_be_read_once_are_enough(images):
    random = zoo.stochastic_batch_norm(Residual(), iter(images.split(8)))
    assert int(random.model.num_batches) == 5


@pytest.mark.parametrize(
    ("likelihood", "num_outputs"), [("gaussian(noise=0.1)", 1), ("bernoulli", 1), ("poisson", 1)]
)
def test_other_likelihoods(images, likelihood, num_outputs):
    net = Residual(num_outputs)
    random = zoo.stochastic_batch_norm(
        net, images, batch_size=8, num_batches=9, likelihood=likelihood
    )
    prediction = random.predict(images[:3], 11)
    assert prediction.mean.shape == (3,)
    assert (prediction.epistemic > 0).all()
    assert (prediction.probabilities is not None) == (likelihood == "bernoulli")


def test_precision_of_the_network_is_kept(images):
    random = zoo.stochastic_batch_norm(
        Residual().double(), images.double(), batch_size=8, num_batches=9
    )
    assert random.outputs(images[:2].double(), 3).dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1}, "between 2 and the number of rows, 40. Got 1"),
        ({"batch_size": 41}, "Got 41"),
        ({"num_batches": 1}, "num_batches must be at least 2. Got 1"),
        ({"likelihood": "gaussian"}, r"write gaussian\(noise=0.1\)"),
        ({"x": []}, "at least one batch"),
    ],
)
def test_bad_values_are_named(images, options, message):
    x = options.pop("x", images)
    with pytest.raises(ConfigError, match=message):
        zoo.stochastic_batch_norm(Residual(), x, **options)


def test_network_without_batch_norm_is_refused(images):
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match="nothing that could be made random"):
        zoo.stochastic_batch_norm(net, images)
