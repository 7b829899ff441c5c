"""`MeanFieldELBO`: Pyro's estimator without unused computations.

Stock `TraceMeanField_ELBO` computes the log density and score of every weight, which it does not
use where the KL is analytic, validates every step, and reads the loss back from the device. Value
and gradients have the same expectation here; a contract check compares them.
"""

from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from guides.lazy import LazySample, LocalReparameterization
from guides.log_scale_normal import summed_kl
from guides.point import Point


class MeanFieldELBO(TraceMeanField_ELBO):
    """Negative ELBO with analytic KLs and the options of `TraceMeanField_ELBO`.

    With ``local``, the guide's Normal sites are integrated out at the layer (see `guides.lazy`).
    """

    def __init__(self, *, local: bool = False, **options: Any) -> None:
        super().__init__(**options)
        if local and self.vectorize_particles:
            raise ValueError("local sampling has noise per row; vectorised particles need weights")
        self.local = local

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of the current batch; nothing is read back from the device."""
        with pyro.validation_enabled(False):
            if self.vectorize_particles:
                loss: Tensor = super().differentiable_loss(model, guide, *args, **kwargs)
                return loss
            particles = [
                self._particle(model, guide, args, kwargs) for _ in range(self.num_particles)
            ]
        return torch.stack(particles).mean() if len(particles) > 1 else particles[0]

    def check(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> None:
        """Run stock Pyro once with all its checks, without changing the random state."""
        stock = TraceMeanField_ELBO(
            num_particles=self.num_particles,
            max_plate_nesting=self.max_plate_nesting,
            vectorize_particles=self.vectorize_particles,
        )
        with torch.no_grad(), torch.random.fork_rng(), pyro.validation_enabled(True):
            stock.differentiable_loss(model, guide, *args, **kwargs)

    def _particle(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Tensor:
        handled = LocalReparameterization()(guide) if self.local else guide
        guide_trace = poutine.trace(handled).get_trace(*args, **kwargs)
        replayed = poutine.replay(model, trace=guide_trace)
        model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        posteriors: dict[str, Any] = dict(prune_subsample_sites(guide_trace).nodes)
        sites: dict[str, Any] = dict(prune_subsample_sites(model_trace).nodes)
        terms = []
        for name, site in sites.items():
            if site["type"] != "sample" or site["infer"].get("_deterministic"):
                continue
            if site["is_observed"]:
                terms.append(-_log_density(site, site["value"]))
            else:
                terms.append(_divergence(site, posteriors[name]))
        for name, site in posteriors.items():
            if site["type"] == "sample" and name not in sites:  # auxiliary
                terms.append(_log_density(site, site["value"]))
        return torch.stack(terms).sum()


def closed_form(posterior: Any, prior: Any) -> Tensor | None:
    r"""Return the divergence of a site's posterior from its prior; None without a closed form.

    Then the objective uses :math:`\log q(z) - \log p(z)` at the draw. A `Delta` has none, because
    autoguides give it a density :math:`-\log |\det T'|`, which Pyro's closed form leaves out.
    """
    base = posterior
    while isinstance(base, Independent):
        base = base.base_dist
    if isinstance(base, Delta) and not isinstance(base, Point):
        return None
    try:
        return kl_divergence(posterior, prior)
    except NotImplementedError:
        return None


def _divergence(prior: Any, posterior: Any) -> Tensor:
    """Return the KL of one site, or its Monte Carlo term when there is no closed form."""
    if posterior["mask"] is None and not posterior["fn"].batch_shape:
        total = summed_kl(posterior["fn"], prior["fn"])
        if total is not None:
            weighted: Tensor = scale_and_mask(total, scale=posterior["scale"])
            return weighted
    kl = closed_form(posterior["fn"], prior["fn"])
    if kl is None:
        value = posterior["value"]
        if isinstance(value, LazySample):
            value = value.value_for_density()
        return _log_density(posterior, value) - _log_density(prior, value)
    scaled: Tensor = scale_and_mask(kl, scale=posterior["scale"], mask=posterior["mask"])
    return scaled.sum()


def _log_density(site: Any, value: Tensor) -> Tensor:
    log_prob = site["fn"].log_prob(value, *site["args"], **site["kwargs"])
    scaled: Tensor = scale_and_mask(log_prob, scale=site["scale"], mask=site["mask"])
    return scaled.sum()
