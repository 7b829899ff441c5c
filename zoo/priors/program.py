"""Programs: priors at work. A `Program` is a Pyro program that draws the value of one slot.

Constants of a prior are buffers of the program, so they follow ``.to(device)`` and no step of
inference creates a tensor.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from guides.base import Guide
from guides.lazy import is_lazy
from guides.mean_field import MeanField
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.spec import Prior, Value


class Program(nn.Module):
    """Draws the value of one slot from its prior. Calling it runs the Pyro program."""

    #: Whether the prior is fitted to the posterior, and so to the data (see `FittedProgram`).
    is_fitted: bool = False
    #: Whether `constrain` moves anything.
    is_constrained: bool = False

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

    def normal(self) -> Normal | None:
        """Return the prior if it is a normal with known parameters."""
        return None

    def start(self, part: Guide) -> None:
        """Fit the prior to pretrained weights; called before the first step that has a KL."""

    def constrain(self, part: Guide) -> None:
        """Bring parameters of the prior and of its posterior back to where they may be."""

    @abstractmethod
    def forward(self) -> Tensor:
        """Sample the sites of this prior and return the slot's value."""


class FittedProgram(Program):
    """A normal prior whose parameters follow the posterior in closed form.

    They are buffers, so a model without its guide is an ordinary one with a fixed prior: it can be
    stored, moved and sampled by NUTS. The guide calls `fit` whenever it runs.
    """

    is_fitted = True

    @abstractmethod
    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Take the best parameters for a posterior with these means and standard deviations."""

    @abstractmethod
    def normal(self) -> dist.Normal:
        """Return the current prior."""

    def forward(self) -> Tensor:
        """Sample the slot."""
        fn = self.normal().expand(self.slot_shape).to_event(len(self.slot_shape))
        value: Tensor = pyro.sample(self.slot_name, fn)
        return value


class ScaledProgram(Program):
    r"""Standardised weights times a scale per group, :math:`w_{ij} = z_i \tilde w_{ij}`.

    Parameters
    ----------
    slot
        The slot.
    group_shape
        Shape of one scale per group, broadcastable against the slot.
    max_sd
        Largest standard deviation of a standardised weight in the posterior; None sets no bound.
    """

    zero: Tensor
    one: Tensor

    def __init__(self, slot: Slot, group_shape: torch.Size, max_sd: float | None) -> None:
        super().__init__(slot)
        self.group_shape, self.max_sd = group_shape, max_sd
        self.is_constrained = max_sd is not None
        self.register_buffer("zero", slot.value.new_zeros(()))
        self.register_buffer("one", slot.value.new_ones(()))

    def scaled(self, z: Tensor) -> Tensor:
        """Sample the standardised weights and return them times the scales of their groups."""
        standard = dist.Normal(self.zero, self.one).expand(self.slot_shape)
        base = pyro.sample(f"{self.slot_name}_base", standard.to_event(len(self.slot_shape)))
        return self.named(base * z.reshape(z.shape[:-1] + self.group_shape))

    @torch.no_grad()
    def constrain(self, part: Guide) -> None:
        """Keep the standard deviations of the standardised weights below their bound."""
        if self.max_sd is not None and isinstance(part, MeanField):
            part[f"{self.slot_name}_base"].log_scale.clamp_(max=math.log(self.max_sd))


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
                self.register_buffer(f"prior_{name}", constant(value, slot.value))

    def forward(self) -> Tensor:
        """Sample hyper-parameters first, then the slot."""
        fn = self.cls(**{name: self._parameter(name) for name in self.names})
        # Hyper-parameters may carry plates in front, when many draws are one call.
        batch = fn.batch_shape
        shape = torch.broadcast_shapes(batch, self.slot_shape) if batch else self.slot_shape
        value: Tensor = pyro.sample(self.slot_name, fn.expand(shape).to_event(len(self.slot_shape)))
        return value

    def normal(self) -> Normal | None:
        """Return the prior if it is a normal without hyper-priors."""
        held = {name: getattr(self, f"prior_{name}") for name in self.names}
        if self.cls is not dist.Normal or not all(isinstance(v, Tensor) for v in held.values()):
            return None
        return dist.Normal(**held)

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


def constant(value: Value, like: Tensor) -> Tensor:
    """Return a number of a prior, or a list of them, in the precision of a slot."""
    exact = torch.tensor(value, dtype=torch.float64)
    constant = exact.to(like)
    if not constant.isfinite().all() or (constant.cpu() == 0).ne(exact == 0).any():
        raise PriorError(f"{like.dtype} cannot hold the number {value} of a prior.")
    return constant
