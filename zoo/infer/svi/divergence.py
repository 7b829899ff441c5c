"""The divergence of one site in closed form, where there is one."""

from typing import Any

import torch
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import kl_divergence

from guides.point import Point


def closed_form(posterior: Any, prior: Any) -> Tensor | None:
    r"""Return the divergence of a site's posterior from its prior; None without a closed form.

    Then the objective uses :math:`\log q(z) - \log p(z)` at the draw. A `Delta` has none, because
    autoguides give it a density :math:`-\log |\det T'|`, which Pyro's closed form leaves out.
    """
    base = posterior
    while isinstance(base, torch.distributions.Independent):
        base = base.base_dist
    if isinstance(base, Delta) and not isinstance(base, Point):
        return None
    try:
        return kl_divergence(posterior, prior)
    except NotImplementedError:
        return None
