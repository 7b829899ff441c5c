"""Batch normalisation under a posterior: every draw of the weights has statistics of its own.

Running averages mix the statistics of all the draws that training went through, and fit none of
them. So training and the ELBO use the statistics of the batch, and predictions those that a draw
has on the training rows.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from zoo.bnn import BNN

#: Training rows from which the statistics of a draw are taken.
STATISTICS_ROWS = 2048


def tracked_layers(net: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Return the layers that keep running statistics, by name."""
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    }


@contextlib.contextmanager
def batch_statistics(net: nn.Module, *, momentum: float = 0.0) -> Iterator[None]:
    """Normalise by the batch; with the default momentum running statistics stay as they are."""
    layers = tracked_layers(net)
    before = {name: (layer.training, layer.momentum) for name, layer in layers.items()}
    for layer in layers.values():
        layer.training, layer.momentum = True, momentum
    try:
        yield
    finally:
        for name, layer in layers.items():
            layer.training, layer.momentum = before[name]


@torch.no_grad()
def statistics_of_draws(model: BNN, slots: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Return the statistics of every normalisation layer for every draw, draws in front.

    Parameters
    ----------
    model
        Its network may hold no such layer; then nothing is returned.
    slots
        Draws of the weights.
    x
        Training rows; the first `STATISTICS_ROWS` are used.
    """
    if not tracked_layers(model.net):
        return {}
    model.eval()
    x = x[:STATISTICS_ROWS].to(next(iter(slots.values())).device)
    with batch_statistics(model.net, momentum=1.0):  # the last batch is all that counts
        collected = [
            _statistics(model, {name: value[index] for name, value in slots.items()}, x)
            for index in range(len(next(iter(slots.values()))))
        ]
    return {name: torch.stack([draw[name] for draw in collected]) for name in collected[0]}


def _statistics(model: BNN, slots: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    buffers = {
        name: value.clone()
        for name, value in model.net.named_buffers()
        if name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
    }
    model.evaluate({**slots, **buffers}, x)
    return {name: value for name, value in buffers.items() if value.is_floating_point()}
