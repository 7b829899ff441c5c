r"""Weights rounded to as many bits as the variance of their posterior asks for.

A weight with posterior variance :math:`V` is stored with as many bits after the binary point as its
posterior can resolve. The published rule compares the variance with the unit of rounding,

.. math:: t(V) = \#\{t \in 1 \ldots 23 : 2 V < 2^{-t}\}

and a layer gets the mean over its weights, rounded up. Weights are then multiples of
:math:`2^{-t}`. The bits counted for one weight include its sign and its exponent, where
:math:`w_{\max}` is the largest weight of the network:

.. math:: 1 + \lceil \log_2(\log_2 w_{\max} + 1) + 1 \rceil + t

Reference: Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*, and the
code released with it.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from zoo.compress.graph import LayerGraph
from zoo.compress.shrink import shrink

#: Bits of a float32, and of its significand.
FLOAT_BITS = 32
MAX_BITS = 23

Rule = Literal["variance", "sd", "off"]
RULES: tuple[Rule, ...] = ("variance", "sd", "off")


def significand_bits(variance: Tensor) -> Tensor:
    """Return t(V) for every variance."""
    units = 2.0 ** -torch.arange(1, MAX_BITS + 1, dtype=torch.float64, device=variance.device)
    return (2 * variance.double().unsqueeze(-1) < units).sum(-1)


def layer_bits(variance: Tensor, *, rule: Rule = "variance") -> int:
    """Return the bits after the binary point of a layer, from the variances of its weights.

    ``variance`` is the published rule. ``sd`` compares the standard deviation, which has the same
    dimension as the weights, with the unit of rounding; it gives about half as many bits.
    """
    spread = variance.sqrt() if rule == "sd" else variance
    return math.ceil(float(significand_bits(spread).double().mean()))


def exponent_bits(largest: float) -> int:
    """Return the bits for the exponent when the largest weight has this size, at least one.

    The published formula has no value for a largest weight of at most one half.
    """
    inner = math.log2(largest) + 1 if largest > 0 else 0.0
    return max(1, math.ceil(math.log2(inner) + 1)) if inner > 0 else 1


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Round weights to multiples of 2^-bits, half up."""
    scale = 2.0**bits
    return torch.floor(weight * scale + 0.5) / scale


@dataclass(frozen=True)
class RoundedNetwork:
    """A network with rounded weights.

    Attributes
    ----------
    graph
        The network.
    bits
        Bits after the binary point, by node; layers without a posterior are not rounded.
    extra
        Bits added to every layer because rounding cost too much.
    """

    graph: LayerGraph
    bits: Mapping[str, int]
    extra: int = 0

    @property
    def exponent(self) -> int:
        """Bits counted for the exponent, from the largest weight of the network."""
        return exponent_bits(max(float(n.weight.abs().max()) for n in self.graph.weighted()))

    def counted_bits(self, name: str) -> int:
        """Bits counted for one weight of a layer: sign, exponent and significand."""
        return 1 + self.exponent + self.bits[name] if name in self.bits else FLOAT_BITS

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain types."""
        return {"exponent": self.exponent, "extra": self.extra, "significand": dict(self.bits)}


@torch.no_grad()
def round_weights(
    graph: LayerGraph, rule: Rule, *, is_good: Callable[[LayerGraph], bool] | None = None
) -> RoundedNetwork:
    """Round the weights of every layer that has a posterior; the rule ``off`` rounds nothing.

    While `is_good` rejects the rounded network, every layer gets one more bit. Rounding to zero
    can leave units without outgoing weights; they are removed as well.
    """
    asked = {
        node.name: layer_bits(node.variance[node.weight != 0], rule=rule)
        for node in graph.weighted()
        if rule != "off" and node.variance is not None and bool(node.weight.any())
    }
    for extra in range(MAX_BITS):
        bits = {name: min(MAX_BITS, wanted + extra) for name, wanted in asked.items()}
        candidate = copy.deepcopy(graph)
        for name, count in bits.items():
            candidate[name].tensors["weight"] = rounded(candidate[name].weight, count)
        result = RoundedNetwork(shrink(candidate), bits, extra)
        if is_good is None or not bits or is_good(result.graph):
            return result
    return RoundedNetwork(graph, {})
