"""Named architectures: multi-layer perceptrons, LeNet-5 and polynomials."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

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


def lenet5(image_shape: tuple[int, int, int], num_outputs: int) -> nn.Sequential:
    """Return LeNet-5 in the Caffe variant of the compression literature, for flat or shaped images.

    Two 5x5 convolutions with 2x2 pooling, then two dense layers; on 28x28 images the first dense
    layer has 800 inputs. ``image_shape`` is channels, height and width, both at least 16.
    """
    channels, height, width = image_shape
    pooled = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, image_shape),
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * pooled[0] * pooled[1], 500),
        nn.ReLU(),
        nn.Linear(500, num_outputs),
    )


class Powers(nn.Module):
    """Inputs raised to the powers 1 to ``degree``, ordered by power."""

    def __init__(self, degree: int) -> None:
        super().__init__()
        self.degree = degree

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., degree * inputs)`` features."""
        return torch.cat([x**power for power in range(1, self.degree + 1)], dim=-1)


def polynomial(num_inputs: int, degree: int, num_outputs: int = 1) -> nn.Sequential:
    """Return a polynomial without mixed terms for each output; the bias is its constant."""
    return nn.Sequential(Powers(degree), nn.Linear(degree * num_inputs, num_outputs))
