"""Prior distributions that are not in torch or Pyro, with their divergences.

Importing the package registers every divergence, so that `pyro.infer.TraceMeanField_ELBO` uses
the closed forms instead of silently falling back to sampling.
"""

from zoo.distributions.empirical_bayes import EmpiricalBayesNormal
from zoo.distributions.graves import graves_prior, graves_relevance
from zoo.distributions.log_uniform import LogUniform, dawson, kl_log_uniform
from zoo.distributions.quantizing import Quantizing
from zoo.distributions.smooth_log_uniform import SmoothLogUniform
from zoo.distributions.truncated_log_uniform import TruncatedLogUniform

__all__ = [
    "EmpiricalBayesNormal",
    "LogUniform",
    "Quantizing",
    "SmoothLogUniform",
    "TruncatedLogUniform",
    "dawson",
    "graves_prior",
    "graves_relevance",
    "kl_log_uniform",
]
