"""Points: posteriors without a spread."""

from typing import Any

from pyro.distributions import Delta, Distribution
from torch import Tensor
from torch.distributions.kl import register_kl


class Point(Delta):
    r"""A point :math:`z = T(u)` that is fitted in unconstrained space.

    The objective has :math:`\log |\det T'(u)|` beside the log joint, so that its maximum is the
    mode of the density of :math:`u`, as for a normal posterior of :math:`u` whose scale goes to
    zero.

    Parameters
    ----------
    v
        The point :math:`z`.
    log_density
        :math:`-\log |\det T'(u)|`; zero for a site on the real line.
    event_dim
        Number of dimensions of one point.
    """


def _kl_point(q: Point, p: Distribution) -> Tensor:
    divergence: Tensor = q.log_density - p.log_prob(q.v)
    return divergence


_register: Any = register_kl
_register(Point, Distribution)(_kl_point)
