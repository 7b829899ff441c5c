"""Batch normalisation under a posterior: every draw of the weights has its own statistics.

Running averages mix the statistics of all draws during training and fit none of them. Training and
the ELBO therefore use the statistics of the batch, and predictions those of a draw on the training
rows. Where the statistics themselves are random, as in `stochastic_batch_norm`, their distribution
comes from their moments over mini-batches.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from guides.stochastic_batch_norm import Moments
from zoo.infer.predict.draws import split_draws
from zoo.network.bnn import BNN

#: Training rows from which the statistics of a draw are taken.
STATISTICS_ROWS = 2048


def tracked_layers(net: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Return the layers with running statistics, by name."""
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    }


def statistic_name(layer: str, statistic: str) -> str:
    """Return the name of the buffer with the ``mean`` or the ``var`` of a layer."""
    return f"{layer}.running_{statistic}".lstrip(".")


@contextlib.contextmanager
def batch_statistics(net: nn.Module, *, momentum: float = 0.0) -> Iterator[None]:
    """Normalise by the batch; with the default momentum running statistics do not change."""
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
    """Return the statistics of every normalisation layer, with draws as the first dimension.

    They are computed from the first `STATISTICS_ROWS` of the training rows. The result is empty if
    there is no such layer or if the statistics are slots.
    """
    if all(statistic_name(layer, "mean") in slots for layer in tracked_layers(model.net)):
        return {}
    model.eval()
    x = x[:STATISTICS_ROWS].to(next(iter(slots.values())).device)
    with batch_statistics(model.net, momentum=1.0):  # only the last batch counts
        collected = [_statistics(model, draw, x) for draw in split_draws(slots)]
    return {name: torch.stack([draw[name] for draw in collected]) for name in collected[0]}


def _statistics(model: BNN, slots: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    buffers = {
        name: value.clone()
        for name, value in model.net.named_buffers()
        if name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
    }
    model.evaluate({**slots, **buffers}, x)
    return {name: value for name, value in buffers.items() if value.is_floating_point()}


@torch.no_grad()
def moments_of_batches(model: BNN, batches: Iterable[Tensor]) -> dict[str, Moments]:
    """Return the moments of every statistic over batches, by the name of its buffer.

    Layers are normalised by the batch, as in training; everything else is as in prediction. For
    variances (with divisor n, as in the normalisation) they are the moments of the logarithm; a
    variance below a layer's epsilon, which is added to it, is replaced by the epsilon. Batches must
    have the size used in training: statistics of smaller batches vary more.
    """
    layers = tracked_layers(model.net)
    moments = {statistic_name(n, s): Moments() for n in layers for s in ("mean", "var")}
    hooks = [
        layer.register_forward_pre_hook(
            _recorder(layer, *(moments[statistic_name(n, s)] for s in ("mean", "var")))
        )
        for n, layer in layers.items()
    ]
    device = next(model.net.parameters()).device
    model.eval()
    try:
        with batch_statistics(model.net):
            for rows in batches:
                model.evaluate({}, rows.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return moments


def _recorder(layer: nn.modules.batchnorm._BatchNorm, mean: Moments, log_variance: Moments) -> Any:
    """Return a hook that updates moments with the statistics of a layer's inputs."""

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].double()
        over = [dim for dim in range(x.dim()) if dim != 1]
        variance, center = torch.var_mean(x, over, correction=0)
        mean.update(center)
        log_variance.update(variance.clamp(min=layer.eps).log())

    return record
