"""Sparse variational dropout: Gaussian weights, pruned by their ratio of noise to signal.

Molchanov, Ashukha and Vetrov (2017), *Variational Dropout Sparsifies Deep Neural Networks*.
"""

from typing import ClassVar

import pyro
from torch import Tensor

from guides.elementwise import Elementwise, log_dropout_rate
from guides.slot import LocScale


class SparseVDGuide(Elementwise):
    r"""Posterior of one weight tensor, :math:`q(w_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)`.

    The parameters are mean and log standard deviation (the *additive* parameterisation): with
    :math:`w = \mu (1 + \sqrt\alpha \epsilon)` the gradient in :math:`\mu` would be noise where
    :math:`\alpha` is large.

    Parameters
    ----------
    slot, init, init_scale
        Name of the weight tensor, initial means and initial standard deviation.
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
