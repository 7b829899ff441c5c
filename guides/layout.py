"""Memory layouts that make later operations fast."""

import torch
from torch import Tensor


def standard_normal_like(value: Tensor) -> Tensor:
    """Draw standard normal noise with shape, type, device and memory layout of ``value``.

    ``torch.randn_like`` keeps the layout as well, but fills any other than the default one number
    by number on a CPU; noise of another layout than its partner makes every later operation slow.
    """
    strides = value.stride()
    # Dimensions that were only expanded come first, as those of several draws do.
    order = sorted(range(value.dim()), key=lambda dim: (strides[dim] > 0, -strides[dim], dim))
    shape = [value.shape[dim] for dim in order]
    noise = torch.randn(shape, dtype=value.dtype, device=value.device)
    return noise.permute(sorted(range(value.dim()), key=order.__getitem__))


def channels_last(weight: Tensor) -> Tensor:
    """Say of the weights of a convolution with one input channel that its channels come last.

    In memory both layouts are the same, and arithmetic forgets which of them was meant; a
    convolution then takes the slow one and hands it on to its outputs. Nothing is copied. Other
    weights keep their layout through arithmetic and are returned as they are.
    """
    if weight.dim() != 4 or weight.shape[1] != 1:
        return weight
    return weight.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)
