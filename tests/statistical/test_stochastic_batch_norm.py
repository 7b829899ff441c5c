"""Stochastic batch normalisation against brute force: real mini-batches of the training rows.

The brute force is written without the zoo: batches are drawn, layers computed by hand. Tolerances
are five standard errors, of both sides together.
"""

import math

import pytest
import torch
from torch import nn

import zoo

BATCH = 16


def moments_with_errors(values):
    """Mean and variance over the first dimension, and the standard errors of both."""
    mean, variance = values.mean(0), values.var(0, correction=0)
    fourth = (values - mean).pow(4).mean(0)
    count = len(values)
    return mean, (variance / count).sqrt(), variance, ((fourth - variance**2) / count).sqrt()


@pytest.fixture(scope="module")
def digits():
    """A fit with two normalised layers, and its test rows."""
    dataset = zoo.data.load("digits", seed=0)
    fitted = zoo.fit(
        "stochastic_batch_norm",
        data=dataset,
        net="mlp:64-20-20-10",
        seed=0,
        num_steps=1500,
        batch_size=BATCH,
        dtype="float64",
        progress_bar=False,
    )
    return fitted, dataset


@pytest.fixture(scope="module")
def brute_force(digits):
    """Statistics of 2000 random batches, and what the network predicts with each of them."""
    fitted, dataset = digits
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return _brute_force(fitted.assembly.model.net, dataset)


@torch.no_grad()
def _brute_force(net, dataset, count=2000):
    weights = dict(net.named_parameters())
    x = torch.as_tensor(dataset.X_train, dtype=torch.float64)
    test = torch.as_tensor(dataset.X_test, dtype=torch.float64)
    names = [f"{layer}_norm.running_{kind}" for layer in "02" for kind in ("mean", "var")]
    seen = {name: [] for name in names}
    probabilities = []
    for _ in range(count):
        batch, predicted = x[torch.randperm(len(x))[:BATCH]], test
        for layer in "02":
            weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
            gain, offset = weights[f"{layer}_norm.weight"], weights[f"{layer}_norm.bias"]
            batch, predicted = batch @ weight.T + bias, predicted @ weight.T + bias
            mean, variance = batch.mean(0), batch.var(0, correction=0)
            seen[f"{layer}_norm.running_mean"].append(mean)
            seen[f"{layer}_norm.running_var"].append(variance)
            scale = gain / (variance + 1e-5).sqrt()
            batch = torch.relu((batch - mean) * scale + offset)
            predicted = torch.relu((predicted - mean) * scale + offset)
        logits = predicted @ weights["4.weight"].T + weights["4.bias"]
        probabilities.append(logits.softmax(-1))
    return {name: torch.stack(v) for name, v in seen.items()}, torch.stack(probabilities)


def test_statistics_have_the_moments_of_real_batches(digits, brute_force):
    model, guide = digits[0].assembly.model, digits[0].assembly.guide
    num_batches = int(model.num_batches)
    for name, values in brute_force[0].items():
        values = values.log() if name.endswith("var") else values
        mean, mean_error, variance, variance_error = moments_with_errors(values)
        law = guide[name][name]
        loc, scale = law.loc.data, law.log_scale.data.exp()
        # The moments of the fit are an estimate too, of the same spread and another count.
        both = math.sqrt(1 + len(values) / num_batches)
        z_mean = ((loc - mean) / (both * mean_error)).abs().max()
        z_variance = ((scale**2 - variance) / (both * variance_error)).abs().max()
        assert z_mean < 5, f"{name}: means differ by {float(z_mean):.1f} standard errors"
        assert z_variance < 5, f"{name}: variances differ by {float(z_variance):.1f}"


def test_predictions_are_nearer_to_real_batches_than_those_of_plain_batch_norm(digits, brute_force):
    fitted, dataset = digits
    samples = brute_force[1]
    truth = samples.mean(0)
    stochastic = fitted.outputs(dataset.X_test, fitted._draw(1000).slots).softmax(-1).mean(0)
    net = fitted.assembly.model.net.eval()
    with torch.no_grad():
        plain = net(torch.as_tensor(dataset.X_test, dtype=torch.float64)).softmax(-1)

    def distance(p):
        """Mean total variation between predictions."""
        return float((p - truth).abs().sum(-1).mean() / 2)

    half = len(samples) // 2
    noise = float((samples[:half].mean(0) - samples[half:].mean(0)).abs().sum(-1).mean() / 4)
    assert distance(stochastic) + 5 * noise < distance(plain)
    # What is left is the method's: laws that are independent over channels and layers leave out
    # how statistics vary together, and with it a part of the doubt.
    entropy = [float(torch.special.entr(p).sum(-1).mean()) for p in (plain, stochastic, truth)]
    assert entropy[0] < entropy[1] < entropy[2]


def test_predictions_are_those_of_real_batches_where_the_laws_are_right():
    """Independent Gaussian inputs: means of batches are Normal, log-variances nearly so."""
    torch.manual_seed(0)
    x = torch.tensor([1.0, -2.0]) + torch.tensor([0.5, 3.0]) * torch.randn(20_000, 2)
    x = x.double()
    net = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)).double()
    num_batches, num_draws, size = 4000, 20_000, 32
    random = zoo.stochastic_batch_norm(net, x, batch_size=size, num_batches=num_batches)
    points = torch.tensor([[1.0, -2.0], [2.0, 1.0], [0.0, -8.0], [1.5, 4.0]], dtype=torch.float64)
    stochastic = random.outputs(points, num_draws).softmax(-1)[..., 0]

    batches = x[torch.randint(len(x), (num_draws, size))]
    mean, variance = batches.mean(1), batches.var(1, correction=0)
    hidden = (points - mean.unsqueeze(1)) / (variance.unsqueeze(1) + 1e-5).sqrt()
    with torch.no_grad():
        real = net[1](hidden).softmax(-1)[..., 0]

    ours, theirs = moments_with_errors(stochastic), moments_with_errors(real)
    # The law was estimated from batches: its mean moves predictions by their sd / sqrt(n), its
    # variance theirs by the share sqrt(2 / n).
    mean_error = (ours[1] ** 2 + theirs[1] ** 2 + theirs[2] / num_batches).sqrt()
    variance_error = (ours[3] ** 2 + theirs[3] ** 2 + 2 * theirs[2] ** 2 / num_batches).sqrt()
    assert ((ours[0] - theirs[0]) / mean_error).abs().max() < 5
    assert ((ours[2] - theirs[2]) / variance_error).abs().max() < 5


def test_defaults_are_accurate_on_digits():
    dataset = zoo.data.load("digits", seed=0)
    fitted = zoo.fit(
        "stochastic_batch_norm", data=dataset, seed=0, num_steps=3000, progress_bar=False
    )
    assert fitted.metrics(dataset, fitted.groups(dataset))["test.accuracy"] >= 0.97
