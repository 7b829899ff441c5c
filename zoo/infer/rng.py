"""Random numbers that leave the caller's alone."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Use random numbers from a seed, on the CPU and on a device, and restore the caller's."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
