"""Programs: priors at work. A `Program` is a Pyro program that draws the value of one slot.

Constants of a prior are buffers of the program, so they follow ``.to(device)`` and no step of
inference creates a tensor.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from guides.lazy import is_lazy
from zoo.errors import PriorError
from zoo.priors.spec import Prior, Value
from zoo.slots import Slot


class Program(nn.Module):
    """Draws the value of one slot from its prior. Calling it runs the Pyro program."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.slot_name = slot.name
        self.slot_shape = slot.shape

    def named(self, value: Tensor) -> Tensor:
        """Show a value that was made from several sites in traces, under the slot's name."""
        if is_lazy(value):  # showing it would draw it
            return value
        shown: Tensor = pyro.deterministic(self.slot_name, value, event_dim=len(self.slot_shape))
        return shown

    @abstractmethod
    def forward(self) -> Tensor:
        """Sample the sites of this prior and return the slot's value."""


class PlainProgram(Program):
    r"""A slot with independent elements, :math:`w_i \sim p(\cdot \mid \phi)`.

    Hyper-priors become scalar sites shared by the whole slot: the scale of ``Normal(0,
    HalfCauchy(1))`` on ``0.weight`` is the site ``0.weight_scale``.
    """

    def __init__(self, slot: Slot, prior: Prior) -> None:
        super().__init__(slot)
        self.cls: Callable[..., Any] = prior.family.cls
        self.names = [name for name, _ in prior.params]
        for name, value in prior.params:
            # Prefixed, because a parameter may have the name of a method of modules.
            if isinstance(value, Prior):
                self.add_module(f"prior_{name}", _hyper_program(slot, name, value))
            else:
                self.register_buffer(f"prior_{name}", _constant(value, slot.value))

    def forward(self) -> Tensor:
        """Sample hyper-parameters first, then the slot."""
        fn = self.cls(**{name: self._parameter(name) for name in self.names})
        # Hyper-parameters may carry plates in front, when many draws are one call.
        batch = fn.batch_shape
        shape = torch.broadcast_shapes(batch, self.slot_shape) if batch else self.slot_shape
        value: Tensor = pyro.sample(self.slot_name, fn.expand(shape).to_event(len(self.slot_shape)))
        return value

    def _parameter(self, name: str) -> Tensor:
        held = getattr(self, f"prior_{name}")
        if isinstance(held, PlainProgram):
            drawn: Tensor = held()
            return drawn.reshape(drawn.shape + (1,) * len(self.slot_shape))
        constant: Tensor = held
        return constant


def _hyper_program(slot: Slot, parameter: str, prior: Prior) -> PlainProgram:
    scalar = Slot(f"{slot.name}_{parameter}", slot.value.new_zeros(()))
    return PlainProgram(scalar, prior)


def _constant(value: Value, like: Tensor) -> Tensor:
    exact = torch.tensor(value, dtype=torch.float64)
    constant = exact.to(like)
    if not constant.isfinite().all() or (constant.cpu() == 0).ne(exact == 0).any():
        raise PriorError(f"{like.dtype} cannot hold the number {value} of a prior.")
    return constant
