r"""Adam as one call for all parameters.

.. math::
    m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2,
    \quad \theta \leftarrow \theta - \eta\, \hat m / (\sqrt{\hat v} + \epsilon)

The kernel is that of `torch.optim.Adam` with ``fused=True``, and the results are bitwise the same.
On small networks the bookkeeping around it, such as one counter per parameter, takes as long as the
kernel; here there is one counter.

Reference: Kingma and Ba (2015), *Adam: A Method for Stochastic Optimization*, ICLR.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zoo.infer.private_torch import fused_adam_step


class FusedAdam:
    """Updates the parameters that have a gradient; ``lr`` may be changed between steps."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self._update = fused_adam_step()
        self.count = self.parameters[0].new_zeros((), dtype=torch.float32)
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        rows = zip(self.parameters, self.means, self.squares, strict=True)
        used = [(p, p.grad, mean, square) for p, mean, square in rows if p.grad is not None]
        if not used:
            return
        tensors: Any = [list(part) for part in zip(*used, strict=True)]
        self._update(tensors, self.count, self.lr)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run needs."""
        state = {"count": self.count}
        for index, (mean, square) in enumerate(zip(self.means, self.squares, strict=True)):
            state |= {f"{index}.mean": mean, f"{index}.square": square}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned; memory layouts stay those of the parameters."""
        self.count.copy_(state["count"])
        for index, (mean, square) in enumerate(zip(self.means, self.squares, strict=True)):
            mean.copy_(state[f"{index}.mean"])
            square.copy_(state[f"{index}.square"])
