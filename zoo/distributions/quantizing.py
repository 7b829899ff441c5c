"""The multi-spike prior of variational network quantization."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal, constraints

from guides.distribution_base import analytic_kl
from zoo.distributions.log_uniform import Improper, molchanov

__all__ = ["Quantizing"]

_REFERENCE_GAP, _REFERENCE_TAU = 0.2, 0.075
_EPSILON = 1e-30


class Quantizing(Improper):
    r"""Improper prior with a log-uniform spike at every code word.

    .. math:: p(w) ∝ \sum_k \frac{a_k}{|w - c_k|}
    .. math:: KL(N(θ, σ²) \| p) ≈ \sum_{k: c_k≠0} Ω_k\,KL_k
        + \Bigl[1 - \sum_{k: c_k≠0} Ω_k\Bigr] KL_0, \quad
        Ω_k = e^{-(θ-c_k)²/(2τ²)}

    with KL_k the fitted log-uniform divergence of N(θ − c_k, σ²) minus log(K a_k), which is zero
    for equal weights. The window τ scales with the code words: by default
    τ = 0.375·gap, where gap is the smallest distance between neighbouring code words. θ and
    σ are rescaled by gap/0.2, so that the ternary codebook [−a, 0, a] gives the published
    approximation (a = 0.2, τ = 0.075) for every a and `codebook` can be trained. Any codebook
    that contains 0 is accepted; if non-zero words are neighbours, the bracket can reach −0.06.

    Parameters
    ----------
    codebook
        Distinct code words, one-dimensional, one of them 0.
    weights
        Mixture weights a_k, by default equal; scaled to sum to one.
    tau
        Width τ of the windows in the units of `codebook`, by default 0.375·gap.

    References
    ----------
    See `zoo.models.quantized`.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "codebook": constraints.real_vector,
    }
    counterpart = (
        "a mixture over the code words of SmoothLogUniform(low, high) shifted by each of them"
    )

    def __init__(
        self,
        codebook: Tensor,
        weights: Tensor | None = None,
        *,
        tau: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if codebook.dim() != 1 or codebook.shape[0] < 2:
            raise ValueError(
                "The codebook of Quantizing must be one-dimensional with at least two code "
                f"words, such as torch.tensor([-0.2, 0.0, 0.2]). Got shape {tuple(codebook.shape)}."
            )
        if weights is None:
            weights = torch.ones_like(codebook)
        if weights.shape != codebook.shape:
            raise ValueError(
                "Quantizing needs one weight per code word. "
                f"Got {tuple(weights.shape)} weights for {tuple(codebook.shape)} code words."
            )
        self.codebook = codebook
        self.log_weights = weights.log() - weights.sum().log()
        self.gap = codebook.sort().values.diff().min()
        self.tau = _REFERENCE_TAU / _REFERENCE_GAP * self.gap if tau is None else tau
        super().__init__(torch.Size(), validate_args=validate_args)
        if self._validate_args:
            if not bool((codebook == 0).any()):
                raise ValueError(
                    "The codebook of Quantizing must contain 0, the code word of pruned weights. "
                    f"Got {codebook.tolist()}."
                )
            if not bool(self.gap > 0):
                raise ValueError(f"Code words must be distinct. Got {codebook.tolist()}.")
            if not bool((weights > 0).all()):
                raise ValueError(f"Weights must be positive. Got {weights.tolist()}.")

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log Σ a_k/|value − c_k|, up to an additive constant."""
        if self._validate_args:
            self._validate_sample(value)
        distance = (value.unsqueeze(-1) - self.codebook).abs()
        # The density at a code word is infinite: clamp at the smallest normal number.
        log_distance = distance.clamp(min=torch.finfo(distance.dtype).tiny).log()
        density = torch.logsumexp(self.log_weights - log_distance, -1)
        return density.expand(np.broadcast_shapes(value.shape, self.batch_shape))


@analytic_kl(Normal, Quantizing)
def _kl_normal_quantizing(p: Normal, q: Quantizing) -> Tensor:
    stretch = q.gap / _REFERENCE_GAP
    # Code words are the first dimension, so that the inner loops are long and vectorise well.
    words = (-1,) + (1,) * p.loc.dim()
    codebook, tau = (q.codebook / stretch).reshape(words), q.tau / stretch
    offset = p.loc / stretch - codebook
    log_variance = 2 * (p.scale / stretch).log()
    divergence = molchanov(log_variance - (offset * offset + _EPSILON).log())
    divergence = divergence - (q.log_weights + math.log(len(q.codebook))).reshape(words)
    spike = (codebook != 0).to(offset.dtype)
    window = spike * torch.exp(-0.5 * (offset / tau).square())
    rest = (1 - window.sum(0)) * (1 - spike)
    shape = np.broadcast_shapes(p.batch_shape, q.batch_shape)
    return ((window + rest) * divergence).sum(0).expand(shape)
