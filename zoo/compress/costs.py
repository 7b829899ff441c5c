"""What a network costs: parameters, bytes, operations, time."""

import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zoo.compress.graph import LayerGraph, LayerNode

#: Rows of a batch whose latency is measured.
BATCH_SIZES = (1, 256)
#: Rounds at most, and seconds after which no round is begun; a round calls every contestant once.
MAX_ROUNDS = 200
MAX_SECONDS = 2.0
WARM_UP = 3


def count_parameters(graph: LayerGraph) -> int:
    """Count the numbers of all layers; masks that pick units are none."""
    return sum(v.numel() for node in graph for v in node.tensors.values() if v.dtype != torch.bool)


def count_weights(graph: LayerGraph) -> tuple[int, int]:
    """Count the weights of linear layers and convolutions, and those that are not zero."""
    weights = [node.weight for node in graph.weighted()]
    return sum(w.numel() for w in weights), sum(int(w.count_nonzero()) for w in weights)


def count_flops(graph: LayerGraph) -> int:
    """Count two operations for every product of a weight and an input, for one row.

    Biases, activations, pooling and normalisation are left out, as is usual.
    """
    return sum(2 * _products(node) for node in graph.weighted())


def _products(node: LayerNode) -> int:
    if node.op == "linear":
        positions = node.source.shape[:-1]
        return node.weight.numel() * math.prod(positions)
    return node.weight.numel() * math.prod(node.shape[1:])


@torch.inference_mode()
def measure_latency(
    contestants: dict[str, Callable[[Tensor], Tensor]],
    row_shape: Sequence[int],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    max_seconds: float = MAX_SECONDS,
) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of every contestant for every batch size.

    They take turns, so that whatever else the machine does slows all of them alike.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in contestants}
    for size in batch_sizes:
        x = torch.randn(size, *row_shape)
        times: dict[str, list[float]] = {name: [] for name in contestants}
        started = time.perf_counter()
        for done in range(MAX_ROUNDS + WARM_UP):
            for name, call in contestants.items():
                before = time.perf_counter()
                call(x)
                times[name].append(time.perf_counter() - before)
            if done > WARM_UP and time.perf_counter() - started > max_seconds:
                break
        for name, values in times.items():
            found[name][str(size)] = 1e3 * statistics.median(values[WARM_UP:])
    return found
