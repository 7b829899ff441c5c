"""Closed forms of the prior of Graves: the optimal shared normal, and the relevance of a weight."""

from torch import Tensor

from guides.graves import graves_relevance

__all__ = ["graves_prior", "graves_relevance"]


def graves_prior(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and **variance** of the shared normal prior that maximises the evidence bound.

    .. math:: m = \frac1n \sum_i μ_i, \qquad v = \frac1n \sum_i [σ_i² + (μ_i - m)²]

    The divergence at the optimum is ½ Σ log(v/σ_i²). By the envelope theorem the gradient of the
    bound is the same whether or not it flows through the result.

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
