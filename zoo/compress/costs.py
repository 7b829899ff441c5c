"""What a network costs: parameters, FLOPs, time, and compression rates as in the literature."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoo.compress.bits import FLOAT_BITS, RoundedNetwork
from zoo.compress.graph import LayerGraph, LayerNode
from zoo.compress.writing import Packed

#: Rows of a batch whose latency is measured.
BATCH_SIZES = (1, 256)
#: Largest number of rounds, and seconds after which no round is started. A round calls every
#: contestant once.
MAX_ROUNDS = 200
MAX_SECONDS = 2.0
WARM_UP = 3


def sizes(graph: LayerGraph) -> dict[str, int]:
    """Count parameters (not the masks of selections), weights, nonzero weights and FLOPs of a row.

    A FLOP is a product of a weight and an input, or its addition. Biases, activations, pooling and
    normalisation are left out, as is usual.
    """
    tensors = [value for node in graph for value in node.tensors.values()]
    weights = [node.weight for node in graph.weighted()]
    return {
        "parameters": sum(v.numel() for v in tensors if v.dtype != torch.bool),
        "weights": sum(w.numel() for w in weights),
        "nonzero_weights": sum(int(w.count_nonzero()) for w in weights),
        "flops": sum(2 * n.weight.numel() * math.prod(_positions(n)) for n in graph.weighted()),
    }


def _positions(node: LayerNode) -> tuple[int, ...]:
    """Return the positions at which a weight is used."""
    return node.source.shape[:-1] if node.op == "linear" else node.shape[1:]


@torch.inference_mode()
def measure_latency(
    contestants: dict[str, Callable[[Tensor], Tensor]],
    row_shape: Sequence[int],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    max_seconds: float = MAX_SECONDS,
) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of every contestant for every batch size.

    They take turns, so that other load on the machine slows all of them alike.
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


def rates(
    net: nn.Module, smaller: LayerGraph, rounded: RoundedNetwork, packed: Mapping[str, Packed]
) -> dict[str, float]:
    """Return compression rates of the weights of `net`; biases are never counted.

    ``pruning``: 32-bit weights of the original over 32-bit weights of the smaller network; a layer
    with zeros may omit them at a cost of one bit per position. ``fast_prediction``: every
    weight of the rounded network, zeros included, with the bits of its layer, and the code books.
    ``maximum``: the bytes of the weights in the file.
    """
    original = sum(p.numel() for p in net.parameters() if p.dim() > 1)
    left = [(n.weight.numel(), int(n.weight.count_nonzero())) for n in smaller.weighted()]
    pruned = sum(min(FLOAT_BITS * size, FLOAT_BITS * present + size) for size, present in left)
    fast = stored = 0
    for node in rounded.graph.weighted():
        bits, book = _counted_bits(node, rounded, packed)
        fast += node.weight.numel() * bits + book
        stored += 8 * packed[f"{node.name}.weight"].num_bytes
    total = FLOAT_BITS * original
    return {
        "weights_left_percent": 100.0 * sum(present for _, present in left) / original,
        "pruning": total / pruned,
        "fast_prediction": total / fast,
        "maximum": total / stored,
    }


def _counted_bits(
    node: LayerNode, rounded: RoundedNetwork, packed: Mapping[str, Packed]
) -> tuple[int, int]:
    """Return the bits of one weight of a layer, and those of its code book.

    A weight that is not rounded but stored as a code word needs the bits of the number of that
    word; zero is a word like the others.
    """
    coding = packed[f"{node.name}.weight"].entry["coding"]
    if node.name in rounded.bits or coding != "codebook":
        return rounded.counted_bits(node.name), 0
    num_words = len(node.weight.float().unique())
    return max(1, (num_words - 1).bit_length()), FLOAT_BITS * num_words


def layer_rows(
    full: LayerGraph, rounded: RoundedNetwork, packed: Mapping[str, Packed]
) -> list[dict[str, Any]]:
    """Return for every layer its shape before and after, its bits and its bytes."""
    return [
        {
            "layer": node.name,
            "original": list(full[node.name].weight.shape),
            "smaller": list(node.weight.shape),
            "nonzero": int(node.weight.count_nonzero()),
            "significand_bits": rounded.bits.get(node.name),
            "counted_bits": _counted_bits(node, rounded, packed)[0],
            "coding": packed[f"{node.name}.weight"].entry["coding"],
            "bytes": packed[f"{node.name}.weight"].num_bytes,
        }
        for node in rounded.graph.weighted()
    ]
