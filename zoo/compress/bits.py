r"""How many bits a weight needs, from the variance of its posterior.

A weight with posterior variance :math:`V` is stored with as many bits after the point as its
posterior can tell apart. The published rule compares the variance with the unit of rounding,

.. math:: t(V) = \#\{t \in 1 \ldots 23 : 2 V < 2^{-t}\}

and a layer gets the mean over its weights, rounded up. Weights are then multiples of
:math:`2^{-t}`. Sign and exponent add to the bits that are counted, with the largest weight of the
network :math:`w_{\max}`:

.. math:: 1 + \lceil \log_2(\log_2 w_{\max} + 1) + 1 \rceil + t

Reference: Louizos, Ullrich and Welling (2017), *Bayesian Compression for Deep Learning*, and the
code released with it.
"""

import math
from typing import Literal

import torch
from torch import Tensor

#: Bits of the significand of a float32.
MAX_BITS = 23

Rule = Literal["variance", "sd", "off"]
RULES: tuple[Rule, ...] = ("variance", "sd", "off")


def significand_bits(variance: Tensor) -> Tensor:
    """Return t(V) for every variance."""
    units = 2.0 ** -torch.arange(1, MAX_BITS + 1, dtype=torch.float64, device=variance.device)
    return (2 * variance.double().unsqueeze(-1) < units).sum(-1)


def layer_bits(variance: Tensor, *, rule: Rule = "variance") -> int:
    """Return the bits after the point of one layer.

    Parameters
    ----------
    variance
        Posterior variances of the weights that are kept.
    rule
        ``variance`` is the published rule. ``sd`` compares the standard deviation with the unit of
        rounding instead, which has the same dimension; it gives about half as many bits.
    """
    spread = variance.sqrt() if rule == "sd" else variance
    return math.ceil(float(significand_bits(spread).double().mean()))


def exponent_bits(largest: float) -> int:
    """Return the bits for the exponent when the largest weight has this size, at least one.

    The published formula has no value for a largest weight of at most one half.
    """
    inner = math.log2(largest) + 1 if largest > 0 else 0.0
    return max(1, math.ceil(math.log2(inner) + 1)) if inner > 0 else 1


def total_bits(layer: int, exponent: int) -> int:
    """Return the bits that are counted for one weight: sign, exponent and significand."""
    return 1 + exponent + layer


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Round weights to multiples of 2^-bits, half up."""
    scale = 2.0**bits
    return torch.floor(weight * scale + 0.5) / scale
