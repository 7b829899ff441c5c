"""Any univariate distribution as the prior of a slot, hyper-priors included."""

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Normal, constraints

from guides.base import Guide
from guides.mean_field import MeanField
from zoo.network.slots import Slot
from zoo.priors.slot_prior import SlotPrior, constant
from zoo.priors.spec import Prior


class PlainPrior(SlotPrior, registered=False):
    r"""A slot with independent elements, :math:`w_i \sim p(\cdot \mid \phi)`.

    Hyper-priors become scalar sites shared by the whole slot: the scale of ``Normal(0,
    HalfCauchy(1))`` on ``0.weight`` is the site ``0.weight_scale``.
    """

    def __init__(self, slot: Slot, prior: Prior) -> None:
        self.cls: Callable[..., Any]
        self.names: list[str]
        super().__init__(slot, prior=prior)

    def setup(self) -> None:
        """Register a buffer for every number, and a module for every hyper-prior."""
        prior: Prior = self.prior  # type: ignore[assignment]
        self.cls = prior.family.cls
        self.names = [name for name, _ in prior.params]
        for name, value in prior.params:
            # Prefixed, because a parameter may be named like a method of modules.
            if isinstance(value, Prior):
                scalar = Slot(self.site(name), self.slot.value.new_zeros(()))
                self.add_module(f"prior_{name}", PlainPrior(scalar, value))
            else:
                self.register_buffer(f"prior_{name}", constant(value, self.slot.value))

    def model(self) -> Tensor:
        """Sample hyper-parameters first, then the slot."""
        value: Tensor = pyro.sample(self.slot.name, self.distribution())
        return value

    def distribution(self) -> Any:
        """Return the distribution of the slot; hyper-parameters are sampled."""
        return self.elements(self.cls(**{name: self._parameter(name) for name in self.names}))

    def guide(self, init_scale: float) -> Guide:
        """Return a mean-field posterior.

        It is initialised at the median of the prior if the slot's value is not inside the support.
        """
        prior: Prior = self.prior  # type: ignore[assignment]
        inside = _is_inside(prior.family.support(prior.arguments), self.slot.value)
        init = self.starts() if inside else {}
        return MeanField(self, init=init, init_scale=init_scale)

    def normal(self) -> Normal | None:
        """Return the prior if it is a normal without hyper-priors."""
        held = {name: getattr(self, f"prior_{name}") for name in self.names}
        if self.cls is not dist.Normal or not all(isinstance(v, Tensor) for v in held.values()):
            return None
        return dist.Normal(**held)

    def _has_parts(self) -> bool:
        return False  # the slot is a site

    def _parameter(self, name: str) -> Tensor:
        held = getattr(self, f"prior_{name}")
        if isinstance(held, SlotPrior):
            drawn: Tensor = held()
            return drawn.reshape(drawn.shape + (1,) * len(self.slot.shape))
        number: Tensor = held
        return number


def _is_inside(support: constraints.Constraint, value: torch.Tensor) -> bool:
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    at_border = any(bool((value == bound).any()) for bound in bounds if bound is not None)
    return bool(support.check(value).all()) and not at_border
