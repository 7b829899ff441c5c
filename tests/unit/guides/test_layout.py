"""Memory layouts survive draws and arithmetic."""

import pyro
import pytest
import torch
from torch import nn

import zoo
from guides.layout import channels_last, standard_normal_like
from zoo.infer.svi.objective import Objective


@pytest.mark.parametrize("channels", [1, 3])
def test_weights_of_a_convolution_have_their_channels_last(channels):
    weight = 2 * torch.randn(4, channels, 5, 5).to(memory_format=torch.channels_last)
    marked = channels_last(weight)
    assert torch.equal(marked, weight)
    assert marked.stride() == (25 * channels, 1, 5 * channels, channels)


def test_matrices_and_images_of_many_channels_are_left_as_they_are():
    for value in (torch.randn(3, 1), torch.randn(4, 3, 5, 5)):
        assert channels_last(value) is value


def test_noise_has_the_layout_of_its_partner():
    partner = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert standard_normal_like(partner).stride() == partner.stride()


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_outputs_of_a_bayesian_convolution_have_their_channels_last(channels, local):
    strides = []
    net = nn.Sequential(nn.Conv2d(channels, 6, 3), nn.Flatten(), nn.Linear(6 * 36, 2))
    model = zoo.create("mean_field", net, likelihood="categorical", num_data=20)
    model.net[0].register_forward_hook(lambda module, x, out: strides.append(out.stride()))
    objective = Objective(model, model.guide(init_scale=0.1), local=local, validate=False)
    with pyro.settings.context(module_local_params=True):
        objective(torch.randn(5, channels, 8, 8), torch.zeros(5, dtype=torch.long))
    assert strides == [(216, 1, 36, 6)]
