"""Schedules and mini-batches as pure functions of the step, without state."""

import functools
import math

import numpy as np
import torch

from zoo.registry import Recipe


def lr_factor(recipe: Recipe, step: int) -> float:
    """Learning rate at a step, relative to the initial one."""
    progress = step / recipe.num_steps
    if recipe.schedule == "linear":
        return min(1.0, 2.0 * (1.0 - progress))
    if recipe.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


def pretrain_steps(recipe: Recipe) -> int:
    """Return the number of initial steps without the KL."""
    return round(recipe.pretrain * recipe.num_steps)


def kl_weight(recipe: Recipe, step: int) -> float:
    """Weight of the KL at a step: initially zero, then increasing linearly to one."""
    since = step - pretrain_steps(recipe)
    if since < 0:
        return 0.0
    warmup = recipe.kl_warmup * recipe.num_steps
    return min(1.0, since / warmup) if warmup > 0 else 1.0


def batch_rows(
    num_rows: int, batch_size: int, step: int, seed: int, device: torch.device | None = None
) -> torch.Tensor:
    """Rows of the mini-batch of a step.

    Every epoch is one random partition of the rows, which depends only on the seed and the number
    of the epoch, so that a resumed run has the same batches. The last batch may be smaller.
    """
    batch_size = min(batch_size, num_rows)
    epoch, position = divmod(step, math.ceil(num_rows / batch_size))
    order = _epoch_order(num_rows, epoch, seed, device or torch.device("cpu"))
    return order[position * batch_size : (position + 1) * batch_size]


@functools.lru_cache(maxsize=1)
def _epoch_order(num_rows: int, epoch: int, seed: int, device: torch.device) -> torch.Tensor:
    # Drawn on the CPU, so that batches are the same on all devices.
    generator = torch.Generator().manual_seed(child_seed(seed, epoch))
    return torch.randperm(num_rows, generator=generator).to(device)


def child_seed(seed: int, stream: int) -> int:
    """Derive the seed of an independent stream of random numbers."""
    return int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0] >> 1)
