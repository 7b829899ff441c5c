"""The private names of torch that guides use, each with a public fallback to the same numbers.

They are known to work with torch 2.13.0. The fallbacks take twice as long on small tensors, and are
used if a private name is missing or has other arguments.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Gamma


def standard_gamma(concentration: Tensor) -> Tensor:
    """Draw from Gamma distributions of rate one, with gradients through the concentration."""
    try:
        return torch._standard_gamma(concentration)
    except (AttributeError, TypeError):
        rate = torch.ones_like(concentration)
        return Gamma(concentration, rate, validate_args=False).rsample()


def call_on_plain_tensors(cls: type[Tensor], func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call a function as if a subclass of tensors had no ``__torch_function__`` of its own."""
    try:
        disabled = torch._C.DisableTorchFunctionSubclass()
    except (AttributeError, TypeError):
        return super(cls, cls).__torch_function__(func, types, args, kwargs)  # type: ignore[misc]  # mypy does not see that of Tensor
    with disabled:
        return func(*args, **kwargs)
