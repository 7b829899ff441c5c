"""Closed forms of the prior of Graves: the optimal shared normal, and the relevance of a weight."""

from torch import Tensor

from guides.graves import graves_relevance

__all__ = ["graves_prior", "graves_relevance"]


def graves_prior(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and **variance** of the shared normal prior that maximises the evidence bound.

    The formula is in `zoo.models.graves`; ``loc`` and ``scale`` are those of the guide. By the
    envelope theorem the gradient of the bound is the same whether or not it flows through the
    result.
    """
    mean = loc.mean()
    return mean, (scale.square() + (loc - mean).square()).mean()
