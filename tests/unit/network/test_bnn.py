"""What a network says about its slots and priors, on which other rooms decide."""

import pytest
from torch import nn

import zoo

NET = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("priors", "drawn", "noisy"),
    [
        ({"*": "Normal(0, 1)"}, True, False),
        ({"*": "SparseVD"}, True, True),
        ({"0.weight": "SparseVD"}, True, True),
        ({"2.weight": "SparseVD"}, True, False),
    ],
)
def test_convolutions_are_noisy_if_their_own_prior_makes_noise(priors, drawn, noisy):
    model = zoo.create("mean_field", NET, likelihood="gaussian(noise=1)", num_data=5, priors=priors)
    assert model.has_random_convolutions is drawn
    assert model.has_noisy_convolutions is noisy


def test_a_network_without_convolutions_has_none():
    model = zoo.create("mean_field", NET[2:], likelihood="gaussian(noise=1)", num_data=5)
    assert not model.has_random_convolutions
    assert not model.has_noisy_convolutions
