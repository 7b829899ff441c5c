"""Polynomials: linear in the parameters, not in the inputs."""

import torch
from torch import Tensor, nn


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
