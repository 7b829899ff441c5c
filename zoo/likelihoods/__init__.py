"""What the outputs of a network say about an observation."""

from zoo.likelihoods.families import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    Poisson,
    StudentT,
    default_likelihood,
    parse_likelihood,
    spell,
)

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "StudentT",
    "default_likelihood",
    "parse_likelihood",
    "spell",
]
