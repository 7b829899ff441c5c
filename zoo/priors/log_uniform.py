"""The log-uniform prior of sparse variational dropout."""

from dataclasses import dataclass
from typing import ClassVar

import pyro
from torch import Tensor

from guides.sparse_vd import SparseVD
from zoo import distributions
from zoo.network.slots import Slot
from zoo.priors.program import Program
from zoo.priors.structured import StructuredPrior, structured


@structured
@dataclass(frozen=True)
class LogUniform(StructuredPrior):
    r"""An improper log-uniform prior on every weight, :math:`p(w) \propto |w|^{-1}`.

    The same on every scale, so that only the ratio of noise to signal costs anything. The prior is
    improper, and so is the posterior: only differences of the ELBO mean something, and it cannot
    be sampled.

    References
    ----------
    Molchanov, Ashukha and Vetrov (2017), *Variational Dropout Sparsifies Deep Neural Networks*.
    """

    is_improper: ClassVar[bool] = True
    makes_noise: ClassVar[bool] = True

    def program(self, slot: Slot) -> "LogUniformProgram":
        """Return the program with the weights as its one site."""
        return LogUniformProgram(slot)

    def guide(self, slot: Slot, program: Program, init_scale: float) -> SparseVD:
        """Gaussian weights, judged by their ratio of noise to signal."""
        init = {slot.name: slot.value}
        return SparseVD(program, slot=slot.name, init=init, init_scale=init_scale)

    def proper(self) -> str:
        """Return the same with a scale per weight that is bounded on both sides."""
        return "TruncatedNormalJeffreys(group=element)"


class LogUniformProgram(Program):
    """Pyro program of `LogUniform` for one slot."""

    def forward(self) -> Tensor:
        """Sample the slot."""
        fn = distributions.LogUniform().expand(self.slot_shape).to_event(len(self.slot_shape))
        value: Tensor = pyro.sample(self.slot_name, fn)
        return value
