"""`SlotPrior`: the prior of one slot, written as a Pyro model.

A subclass declares its parameters as annotated class attributes and writes its sample statements in
`model`::

    class Scaled(SlotPrior):
        scale: float = 1.0

        def model(self) -> Tensor:
            s = pyro.sample(self.site("scale"), HalfCauchy(self.number(self.scale)))
            return pyro.sample(self.slot.name, self.elements(Normal(self.zero, s)))

Defining the class registers it: prior texts such as ``Scaled(scale=0.1)`` find it by its name. The
numbers of a prior are buffers, so they follow ``.to(device)``, and no step of inference creates a
tensor.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
import torch
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor, nn
from torch.distributions import Normal, constraints

from guides.base import Guide
from guides.lazy import is_lazy
from guides.mean_field import MeanField, start_of
from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors.families import register_prior
from zoo.priors.options import Options


class SlotPrior(nn.Module):
    """The prior of one slot, with values of the annotated attributes. Calling it runs the model."""

    #: Ranges of the numeric parameters, by name.
    ranges: ClassVar[dict[str, constraints.Constraint]] = {}
    #: Support of the slot's values.
    support: ClassVar[constraints.Constraint] = constraints.real
    #: Settings of the guide that follows this prior.
    options: ClassVar[type[Options]] = Options
    #: Earlier names of this prior, and parameters that are options now.
    old_names: ClassVar[tuple[str, ...]] = ()
    moved_parameters: ClassVar[tuple[str, ...]] = ()
    #: Whether it is a prior of structure, and of nothing else.
    of_structure: ClassVar[bool] = False
    #: Whether it has no density, so that a divergence from it is known up to a constant at best.
    is_improper: ClassVar[bool] = False
    #: Whether most weights become noise, which drowns gradients that have one draw for all rows.
    makes_noise: ClassVar[bool] = False
    #: Whether the prior is fitted to the posterior, and so to the data.
    is_fitted: bool = False

    zero: Tensor
    one: Tensor
    one_half: Tensor

    def __init_subclass__(cls, *, registered: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if registered:
            register_prior(cls)

    def __init__(self, slot: Slot, **parameters: Any) -> None:
        super().__init__()
        self.slot = slot
        #: The settings of the guide, an instance of ``options``.
        self.settings: Any = self.options()
        for name, value in parameters.items():
            setattr(self, name, value)
        for name, number in (("zero", 0.0), ("one", 1.0), ("one_half", 0.5)):
            self.register_buffer(name, slot.value.new_tensor(number), persistent=False)
        self._numbers: dict[Any, str] = {}
        self.setup()
        self._is_composed = self._has_parts()

    @classmethod
    def check(cls, parameters: Mapping[str, Any]) -> None:
        """Refuse parameters that are valid separately but not together."""

    @classmethod
    def support_of(cls, slot: Slot) -> constraints.Constraint:
        """Return the support of a slot's values."""
        return cls.support

    def setup(self) -> None:
        """Create the buffers and parameters of the model; by default none."""

    @abstractmethod
    def model(self) -> Tensor:
        """Run the sample statements of this prior and return the slot's value."""

    def guide(self, init_scale: float) -> Guide:
        """Return the guide of this prior, initialised at the slot's current value.

        ``init_scale`` is the initial standard deviation in unconstrained space.
        """
        return MeanField(self, init=self.starts(), init_scale=init_scale)

    def starts(self) -> dict[str, Tensor]:
        """Return initial values by site; other sites start at the median of their prior."""
        return {self.slot.name: self.slot.value}

    def proper(self) -> str | None:
        """Return the proper prior that replaces an improper one for sampling."""
        return None

    def normal(self) -> Normal | None:
        """Return the prior if it is a normal with known parameters."""
        return None

    # ------------------------------------------------------------------ life cycle

    @property
    def is_bounded(self) -> bool:
        """Whether `after_update` restricts the posterior."""
        return getattr(self.settings, "max_sd", None) is not None

    @property
    def is_updated(self) -> bool:
        """Whether `after_update` changes anything."""
        return self.is_fitted or self.is_bounded

    def before_training(self, guide: Guide) -> None:
        """Adapt to the initial posterior."""

    def after_pretraining(self, guide: Guide) -> None:
        """Fit the prior to pretrained weights; called before the first step that has a KL."""

    def after_update(self, guide: Guide) -> None:
        """Adapt to the updated parameters; called after every step."""

    # ------------------------------------------------------------------ what models are made of

    def site(self, part: str) -> str:
        """Return the name of the site of a part of this prior."""
        return f"{self.slot.name}_{part}"

    def number(self, value: Any) -> Tensor:
        """Return a number, or a list of them, in the precision and on the device of the slot."""
        key = value if isinstance(value, tuple) else float(value)
        if key not in self._numbers:
            name = f"number_{len(self._numbers)}"
            self.register_buffer(name, constant(value, self.slot.value), persistent=False)
            self._numbers[key] = name
        return self.get_buffer(self._numbers[key])

    def elements(self, distribution: Any) -> Any:
        """Return the distribution of the whole slot, with independent elements."""
        batch, shape = distribution.batch_shape, self.slot.shape
        # Hyper-parameters may carry plates in front, when many draws are one call.
        full = torch.broadcast_shapes(batch, shape) if batch else shape
        return distribution.expand(full).to_event(len(shape))

    def groups(self, grouping: str) -> "Groups":
        """Return the groups of the slot's elements."""
        return Groups(self.slot.group_shape(grouping))

    def forward(self) -> Tensor:
        """Run the model; a value computed from several sites is recorded under the slot's name."""
        value = self.model()
        if not self._is_composed or is_lazy(value):  # recording a lazy value would draw it
            return value
        shown: Tensor = pyro.deterministic(self.slot.name, value, event_dim=len(self.slot.shape))
        return shown

    def _has_parts(self) -> bool:
        """Run the model once, which creates its numbers; return whether the slot is no site."""
        start = InitMessenger(lambda site: start_of(site["fn"]))  # improper ones have no draws
        with pyro.poutine.block(), start, torch.no_grad():
            trace = pyro.poutine.trace(self.model).get_trace()
        return self.slot.name not in trace.nodes


class FittedPrior(SlotPrior, registered=False):
    """A normal prior whose parameters are fitted to the posterior in closed form."""

    is_fitted = True

    @abstractmethod
    def fit(self, loc: Tensor, scale: Tensor) -> None:
        """Set the optimal parameters for a posterior with these means and standard deviations."""

    def before_training(self, guide: Guide) -> None:
        """Fit the prior to the initial posterior."""
        self.after_update(guide)

    def after_update(self, guide: Guide) -> None:
        """Fit the prior to the current posterior.

        At the optimum the gradient of the divergence in the prior's parameters is zero, so none
        needs to flow (envelope theorem).
        """
        w = getattr(guide, "w", None)
        if w is not None:
            self.fit(w.loc.detach(), w.log_scale.detach().exp())


class Groups:
    """Groups of the elements of a slot; ``shape`` is that of one number per group."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape

    def of(self, distribution: Any) -> Any:
        """Return the distribution of one number per group."""
        return distribution.expand([self.shape.numel()]).to_event(1)

    def spread(self, values: Tensor) -> Tensor:
        """Reshape one number per group so that it broadcasts against the slot."""
        return values.reshape(values.shape[:-1] + self.shape)


def constant(value: Any, like: Tensor) -> Tensor:
    """Return a number of a prior, or a list of them, in the precision of a slot."""
    exact = torch.tensor(value, dtype=torch.float64)
    constant = exact.to(like)
    if not constant.isfinite().all() or (constant.cpu() == 0).ne(exact == 0).any():
        raise PriorError(f"{like.dtype} cannot hold the number {value} of a prior.")
    return constant
