"""Closed forms of Graves' greedy prior: the best shared normal, and the relevance of a weight."""

from torch import Tensor

from guides.graves import graves_relevance

__all__ = ["graves_prior", "graves_relevance"]


def graves_prior(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and **variance** of the shared normal prior that maximises the evidence bound.

    .. math:: m = \frac1n \sum_i μ_i, \qquad v = \frac1n \sum_i [σ_i² + (μ_i - m)²]

    The divergence at the optimum is ½ Σ log(v/σ_i²). Gradients may flow through the result or
    not: by the envelope theorem those of the bound are the same.

    Parameters
    ----------
    loc, scale
        Means μ and standard deviations σ of a normal guide over one block of weights.

    References
    ----------
    Graves (2011), *Practical Variational Inference for Neural Networks*.
    """
    mean = loc.mean()
    return mean, (scale.square() + (loc - mean).square()).mean()
