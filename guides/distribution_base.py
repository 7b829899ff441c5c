"""What distributions of our own have in common: `expand`, and the registration of divergences."""

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch.distributions.kl import register_kl

F = TypeVar("F", bound=Callable[..., Any])


class Expandable(TorchDistribution):
    """A distribution that expands by copying: a subclass names the parameters to expand."""

    #: Attributes whose shape starts with the batch shape; all others are shared.
    batched: ClassVar[tuple[str, ...]] = ()

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Return the same distribution with a larger batch shape."""
        new: Any = self._get_checked_instance(type(self), _instance)
        vars(new).update(vars(self))
        for name in self.batched:
            value = getattr(self, name)
            setattr(new, name, value.expand(*batch_shape, *value.shape[len(self.batch_shape) :]))
        torch.distributions.Distribution.__init__(
            new, torch.Size(batch_shape), self.event_shape, validate_args=False
        )
        new._validate_args = self._validate_args
        made: Self = new
        return made


def analytic_kl(q: type, p: type) -> Callable[[F], F]:
    """Register the closed form of KL(q || p), which `TraceMeanField_ELBO` then finds."""
    register: Any = register_kl
    decorator: Callable[[F], F] = register(q, p)
    return decorator
