"""Standard normal noise in the memory layout of another tensor."""

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
