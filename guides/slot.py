"""The posterior of one slot: parameters by site, and sample statements that use them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from guides.base import Guide
from guides.log_scale_normal import LogScaleNormal


class LocScale(nn.Module):
    """Location and log scale of one site, both of the shape of the initial ``loc``."""

    loc: Tensor
    log_scale: Tensor

    def __init__(self, loc: Tensor, init_scale: float) -> None:
        super().__init__()
        loc = loc.detach().clone()
        self.loc = nn.Parameter(loc)
        self.log_scale = nn.Parameter(torch.full_like(loc, math.log(init_scale)))

    @property
    def scale(self) -> Tensor:
        """The scale."""
        return self.log_scale.exp()

    def fix_scale(self) -> None:
        """Stop training the scale."""
        log_scale = self.log_scale.detach()
        del self.log_scale
        self.register_buffer("log_scale", log_scale)

    def normal(self) -> Any:
        """Return the normal distribution of independent elements with these parameters."""
        return LogScaleNormal(self.loc, self.log_scale).to_event(self.loc.dim())


class SlotGuide(Guide):
    """Posterior of one slot of a network, or of any tensor of a Pyro model.

    The parameters of site ``{slot}_{part}`` are the attribute ``part``; those of a site named like
    the slot are the attribute ``w``.
    """

    def __init__(self, slot: str) -> None:
        super().__init__()
        self.slot = slot
        self.register_load_state_dict_pre_hook(_with_attribute_names)

    def site(self, part: str) -> str:
        """Return the name of the site of a part."""
        return f"{self.slot}_{part}"

    @property
    def names(self) -> list[str]:
        """Names of the sites."""
        return list(self.distributions())

    def __getitem__(self, site: str) -> Any:
        """Return the parameters of a site."""
        return getattr(self, self._attribute(site))

    def _attribute(self, site: str) -> str:
        return "w" if site == self.slot else site.removeprefix(f"{self.slot}_")


def _with_attribute_names(guide: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Read an old state, whose parameters are named by site: ``sites.@0/weight_base.loc``."""
    start = f"{prefix}sites.@"
    for key in [key for key in state if key.startswith(start)]:
        site, _, leaf = key.removeprefix(start).partition(".")
        state[f"{prefix}{guide._attribute(site.replace('/', '.'))}.{leaf}"] = state.pop(key)
