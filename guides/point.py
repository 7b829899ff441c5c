"""Points: posteriors without a spread."""

from pyro.distributions import Delta, Distribution
from torch import Tensor

from guides.distribution_base import analytic_kl


class Point(Delta):
    r"""A point :math:`z = T(u)` that is fitted in unconstrained space.

    The objective adds :math:`\log |\det T'(u)|` to the log joint, so that its maximum is the
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


@analytic_kl(Point, Distribution)
def _kl_point(q: Point, p: Distribution) -> Tensor:
    divergence: Tensor = q.log_density - p.log_prob(q.v)
    return divergence
