"""Sparse variational dropout: Gaussian weights, judged by their ratio of noise to signal."""

from typing import ClassVar

import pyro
from torch import Tensor

from guides.elementwise import Elementwise, log_dropout_rate
from guides.slot import LocScale


class SparseVDGuide(Elementwise):
    r"""Posterior of one weight tensor under a log-uniform prior.

    .. math:: q(w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2), \quad \alpha_{ij} = \sigma_{ij}^2 / \mu_{ij}^2

    Mean and log standard deviation are the parameters (the *additive* parameterisation): with
    :math:`w = \mu (1 + \sqrt\alpha \epsilon)` the gradient in :math:`\mu` would be noise where
    :math:`\alpha` is large.

    Parameters
    ----------
    slot
        Name of the weight tensor.
    init
        Where the means start.
    init_scale
        Standard deviations at the start.

    References
    ----------
    Molchanov, Ashukha and Vetrov (2017), *Variational Dropout Sparsifies Deep Neural Networks*.
    """

    #: Weights with a larger log dropout rate are pruned: a binary dropout rate above 0.95.
    default_threshold: ClassVar[float] = 3.0

    def __init__(self, slot: str, init: Tensor, *, init_scale: float = 0.01) -> None:
        super().__init__(slot)
        self.w = LocScale(init, init_scale)

    def guide(self) -> None:
        """Sample the weights."""
        pyro.sample(self.slot, self.w.normal())

    def group_scores(self) -> Tensor:
        r"""Return :math:`\log\alpha` of every weight, flat: large for noise."""
        return log_dropout_rate(self.w.loc, self.w.log_scale).flatten()
