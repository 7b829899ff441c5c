"""Compression rates as the literature counts them, and what is left of every layer."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zoo.compress.graph import LayerGraph, LayerNode
from zoo.compress.packing import Packed
from zoo.compress.rounding import FLOAT_BITS, RoundedNetwork


def rates(
    net: nn.Module, smaller: LayerGraph, rounded: RoundedNetwork, packed: Mapping[str, Packed]
) -> dict[str, float]:
    """Return by which factor the weights became smaller; biases are never counted.

    ``pruning``: 32-bit weights of the original over 32-bit weights of the smaller network; a layer
    that still has zeros may leave them out and pay one bit per position. ``fast_prediction``: every
    weight of the rounded network, zeros included, with the bits of its layer, and the code books.
    ``maximum``: the bytes of the weights in the file.

    Parameters
    ----------
    net
        The original network.
    smaller
        What is left after pruning, not rounded.
    rounded, packed
        The same rounded, and how its tensors are stored.
    """
    original = sum(p.numel() for p in net.parameters() if p.dim() > 1)
    present = sum(int(node.weight.count_nonzero()) for node in smaller.weighted())
    counted = [_counted_bits(node, rounded, packed) for node in rounded.graph.weighted()]
    sizes = [node.weight.numel() for node in rounded.graph.weighted()]
    fast = sum(size * bits + book for size, (bits, book) in zip(sizes, counted, strict=True))
    stored = sum(8 * packed[f"{n.name}.weight"].num_bytes for n in rounded.graph.weighted())
    total = FLOAT_BITS * original
    return {
        "weights_left_percent": 100.0 * present / original,
        "pruning": total / sum(_float_bits(node.weight) for node in smaller.weighted()),
        "fast_prediction": total / fast,
        "maximum": total / stored,
    }


def _counted_bits(
    node: LayerNode, rounded: RoundedNetwork, packed: Mapping[str, Packed]
) -> tuple[int, int]:
    """Return the bits of one weight of a layer, and those of its code book.

    A layer on no grid that is stored as numbers of code words needs the bits of such a number; zero
    is a word like the others.
    """
    coding = packed[f"{node.name}.weight"].entry["coding"]
    if node.name in rounded.bits or coding != "codebook":
        return rounded.counted_bits(node.name), 0
    num_words = len(node.weight.float().unique())
    return max(1, (num_words - 1).bit_length()), FLOAT_BITS * num_words


def _float_bits(weight: Tensor) -> int:
    size, present = weight.numel(), int(weight.count_nonzero())
    return min(FLOAT_BITS * size, FLOAT_BITS * present + size)


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
