"""Put the weights of a network on the grids that their posterior variances ask for."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zoo.compress.bits import MAX_BITS, Rule, exponent_bits, layer_bits, rounded, total_bits
from zoo.compress.graph import LayerGraph
from zoo.compress.shrink import shrink

#: Bits that are counted for a weight that stays a float32.
FLOAT_BITS = 32


@dataclass(frozen=True)
class RoundedNetwork:
    """A network on grids.

    Attributes
    ----------
    graph
        The network.
    bits
        Bits after the point, by node; layers without a posterior have none.
    extra
        Bits that were added to what the variances ask for, because rounding cost too much.
    """

    graph: LayerGraph
    bits: Mapping[str, int]
    extra: int = 0

    @property
    def exponent(self) -> int:
        """Bits that are counted for the exponent, from the largest weight of the network."""
        largest = max(float(node.weight.abs().max()) for node in self.graph.weighted())
        return exponent_bits(largest)

    def counted_bits(self, name: str) -> int:
        """Bits that are counted for one weight of a layer."""
        if name not in self.bits:
            return FLOAT_BITS
        return total_bits(self.bits[name], self.exponent)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain types."""
        return {"exponent": self.exponent, "extra": self.extra, "significand": dict(self.bits)}


@torch.no_grad()
def round_weights(
    graph: LayerGraph, rule: Rule, *, is_good: Callable[[LayerGraph], bool] | None = None
) -> RoundedNetwork:
    """Round the weights of every layer that has a posterior.

    Rounding to zero can leave units without outgoing weights; they are removed as well.

    Parameters
    ----------
    graph
        A smaller network; weights that are zero do not count.
    rule
        How bits follow from variances, see `zoo.compress.bits.layer_bits`; ``off`` rounds nothing.
    is_good
        Tells whether a rounded network is good enough. While it is not, every layer gets a bit
        more.
    """
    asked = {
        node.name: layer_bits(node.variance[node.weight != 0], rule=rule)
        for node in graph.weighted()
        if rule != "off" and node.variance is not None and bool(node.weight.any())
    }
    for extra in range(MAX_BITS):
        bits = {name: min(MAX_BITS, wanted + extra) for name, wanted in asked.items()}
        result = RoundedNetwork(shrink(_on_grids(graph, bits)), bits, extra)
        if is_good is None or not bits or is_good(result.graph):
            return result
    return RoundedNetwork(graph, {})


def _on_grids(graph: LayerGraph, bits: Mapping[str, int]) -> LayerGraph:
    result = copy.deepcopy(graph)
    for name, count in bits.items():
        node = result[name]
        node.tensors["weight"] = rounded(node.weight, count)
    return result
