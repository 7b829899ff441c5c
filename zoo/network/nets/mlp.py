"""Multi-layer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def mlp(sizes: Sequence[int], activation: str = "relu") -> nn.Sequential:
    """Return fully connected layers of the given sizes, inputs first and outputs last."""
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
