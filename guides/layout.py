"""Memory layouts that make later operations fast."""

import torch
from torch import Tensor


def standard_normal_like(value: Tensor) -> Tensor:
    """Draw standard normal noise with shape, type, device and memory layout of ``value``.

    ``torch.randn_like`` keeps the layout as well, but on a CPU it fills any layout but the default
    one number by number. Noise of another layout than ``value`` slows down every later operation.
    """
    strides = value.stride()
    # Expanded dimensions, such as that of several draws, come first.
    order = sorted(range(value.dim()), key=lambda dim: (strides[dim] > 0, -strides[dim], dim))
    shape = [value.shape[dim] for dim in order]
    noise = torch.randn(shape, dtype=value.dtype, device=value.device)
    return noise.permute(sorted(range(value.dim()), key=order.__getitem__))


def channels_last(weight: Tensor) -> Tensor:
    """Mark the weights of a convolution with one input channel as channels-last.

    In memory both layouts are the same, and arithmetic does not preserve which one was meant; the
    convolution and its outputs then use the slow one. Nothing is copied. Other weights keep their
    layout through arithmetic and are returned unchanged.
    """
    if weight.dim() != 4 or weight.shape[1] != 1:
        return weight
    return weight.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)
