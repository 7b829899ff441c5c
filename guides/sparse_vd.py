"""Sparse variational dropout: a noise-to-signal ratio of its own for every weight."""

from typing import ClassVar

from torch import Tensor

from guides.elementwise import Elementwise, log_dropout_rate


class SparseVD(Elementwise):
    r"""Posterior of one weight tensor under a log-uniform prior.

    .. math:: q(w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2), \quad \alpha_{ij} = \sigma_{ij}^2 / \mu_{ij}^2

    Mean and log standard deviation are the parameters (the *additive* parameterisation): with
    :math:`w = \mu (1 + \sqrt\alpha \epsilon)` the gradient in :math:`\mu` would be noise where
    :math:`\alpha` is large.

    References
    ----------
    Molchanov, Ashukha and Vetrov (2017), *Variational Dropout Sparsifies Deep Neural Networks*.
    """

    #: Weights with a larger log dropout rate are noise: a binary dropout rate above 0.95.
    default_threshold: ClassVar[float] = 3.0

    def group_scores(self) -> Tensor:
        r"""Return :math:`\log\alpha` of every weight, flat: large for noise."""
        posterior = self[self.slot]
        return log_dropout_rate(posterior.loc, posterior.log_scale).flatten()
