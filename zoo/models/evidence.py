r"""Exact posterior and exact evidence of models that are linear in their parameters.

Model and posterior, with :math:`\Phi` the derivatives of the outputs by the weights:

.. math::
    w_i \sim N(m_i, s_i^2), \qquad y \sim N(\Phi w, \sigma^2 I), \qquad
    q(w) = p(w \mid y) = N(\hat w, A^{-1}), \quad A = S^{-2} + \sigma^{-2} \Phi^\top \Phi

.. math::
    \log p(y) = \log p(y \mid \hat w) + \log p(\hat w) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |A|

The divergence between posterior and prior is in the evidence, exactly, and no step of training is
taken. Noise that is not given is set to the value with the largest evidence (the second level of
inference). The log evidence, ``log_evidence`` among the metrics, is in units of the standardised
target; between runs on the same data it compares networks, priors and noise. `zoo.infer.evidence`
holds the same algebra for plain arrays, with code lengths beside it.

Use it for linear and polynomial regression (``--net linear``, ``--net polynomial:3``), as the truth
that approximations are held against, and to choose a degree or a prior without held-out rows.

It fails where the model is not what it says: with a likelihood other than a Gaussian of one
noise, or a network that is not linear in its weights, it refuses. The evidence compares whole
models, priors included: a prior that is too wide is punished like a degree that is too high, and
evidence that was maximised over the noise is slightly too large for few rows. Up to 4000 unknowns.

Reference: MacKay (1992), *Bayesian Interpolation*, Neural Computation.
"""

import math
from typing import Any, ClassVar

import numpy as np
import pyro
import torch
from torch import Tensor

from guides.base import Guide
from guides.laplace import LaplaceGuide
from zoo.errors import ConfigError
from zoo.infer.curvature import output_jacobians
from zoo.infer.evidence import Array, LinearModel, best_noise_precision
from zoo.likelihoods import Gaussian, spell
from zoo.models.laplace import gaussian_guide
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.priors.plain import PlainPrior
from zoo.registry import ExpectedFailure, Recipe, register

MAX_UNKNOWNS = 4000
#: Rows of derivatives that are computed at once.
CHUNK_ROWS = 1024
#: What rounding may do to a sum of outputs, relative to their size.
LINEAR_TOLERANCE = 1e-3


class EvidenceNetwork(BNN):
    """A model that is linear in its weights."""

    def sample_slots(self) -> dict[str, Tensor]:
        r"""Draw every weight, :math:`w_i \sim N(m_i, s_i^2)`."""
        weights = {}
        for name in self.slots:
            prior = self.prior(name)
            if not isinstance(prior, PlainPrior):  # refused before the fit
                return super().sample_slots()
            weights[name] = pyro.sample(name, prior.distribution())
        return weights


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(num_steps=1, batch_size=128, kl_warmup=0.0, init_scale=1e-3),
    tasks=("regression",),
    linear=True,
    reference="MacKay (1992), Bayesian Interpolation",
    exactness="exact",
    analytic_kl=True,
    expected_failures={
        "seed_reproduces": ExpectedFailure(
            "runs with different seeds are the same",
            "the posterior is exact: another seed does not change it",
        ),
        "beats_the_prior": ExpectedFailure(
            "log density per row",
            "the posterior is exact however few steps are asked for",
        ),
    },
)
class EvidenceMethod(Method):
    """Standard normal priors on every weight and bias; the guide is the exact posterior."""

    network = EvidenceNetwork
    takes_guides = False
    takes_steps: ClassVar[bool] = False  # type: ignore[misc]

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return a guide that starts at the network's weights; `after_training` makes it exact."""
        return gaussian_guide(model, init_scale)

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Return the same: the exact posterior has all correlations."""
        return self.guide(model, init_scale)

    def check(self, model: BNN, x: Tensor) -> None:
        """Refuse what has no closed form."""
        size = sum(slot.value.numel() for slot in model.slots.values())
        if size > MAX_UNKNOWNS:
            raise ConfigError(
                f"the method 'evidence' takes at most {MAX_UNKNOWNS} unknowns. Got {size}."
            )
        if not isinstance(model.likelihood, Gaussian) or model.likelihood.heteroscedastic:
            raise ConfigError(
                "the method 'evidence' needs a Gaussian likelihood with one noise: gaussian, or "
                f"gaussian(noise=0.1). Got {spell(model.likelihood)}."
            )
        self._check_priors(model)
        if not self._is_linear(model, x):
            raise ConfigError(
                "the method 'evidence' needs a network that is linear in its weights: use "
                "--net linear or --net polynomial:3, or else the method 'laplace'."
            )

    def _check_priors(self, model: BNN) -> None:
        names = [*dict(model.net.named_parameters()), *model.slots]
        for slot in names:
            prior = model.priors.get(slot)
            known = prior is not None and prior.name == "Normal" and slot != "noise"
            if not known or not all(isinstance(v, float) for v in self._arguments(model, slot)):
                raise ConfigError(
                    "the method 'evidence' needs a prior Normal(loc, scale) with numbers on every "
                    f"weight, and none on the noise. Slot {slot!r} has {prior or 'no prior'}."
                )

    def _arguments(self, model: BNN, slot: str) -> tuple[Any, Any]:
        arguments = model.priors[slot].arguments
        return arguments["loc"], arguments["scale"]

    @torch.no_grad()
    def _is_linear(self, model: BNN, x: Tensor) -> bool:
        """Try f(a + b) + f(0) = f(a) + f(b) for random weights and inputs."""
        generator = torch.Generator().manual_seed(0)

        def random(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

        rows = random(x.expand(8, *x.shape[1:]) if len(x) == 1 else x)
        first, second = ({n: random(s.value) for n, s in model.slots.items()} for _ in range(2))
        both = {name: value + second[name] for name, value in first.items()}
        none = {name: torch.zeros_like(value) for name, value in first.items()}
        gap = model.evaluate(both, rows) + model.evaluate(none, rows)
        gap -= model.evaluate(first, rows) + model.evaluate(second, rows)
        size = model.evaluate(first, rows).abs().max()
        return bool(gap.abs().max() <= LINEAR_TOLERANCE * size)

    @torch.no_grad()
    def after_training(self, model: BNN, guide: Guide, rows: TrainingRows) -> None:
        """Make the guide the exact posterior, and the noise the one with the largest evidence."""
        if not isinstance(guide, LaplaceGuide):
            return
        likelihood = model.likelihood
        assert isinstance(likelihood, Gaussian)
        guide.set_mode(torch.zeros_like(guide.mode))
        chunks = rows.x.split(CHUNK_ROWS)
        parts = [output_jacobians(model, guide, chunk.to(guide.mode)) for chunk in chunks]
        offset = torch.cat([f[:, 0] for f, _ in parts]).double().cpu().numpy()
        features = torch.cat([jacobian[:, 0] for _, jacobian in parts]).double().cpu().numpy()
        target = rows.y.double().cpu().numpy() - offset
        center, precision = self._prior(model, guide)
        if likelihood.learned:
            best = best_noise_precision(features, target - features @ center, precision)
            likelihood.log_noise.fill_(-0.5 * math.log(best))
        noise = likelihood.log_noise.exp() if likelihood.learned else likelihood.fixed_noise
        exact = LinearModel(features, target, precision, float(noise) ** -2, center)
        guide.set_mode(torch.as_tensor(exact.mean).to(guide.mode))
        joint = exact.log_likelihood(exact.mean) + exact.log_prior(exact.mean)
        guide.set_precision(torch.as_tensor(exact.precision, device=guide.mode.device), joint)

    def _prior(self, model: BNN, guide: LaplaceGuide) -> tuple[Array, Array]:
        """Return mean and precision of every weight, in the order of the guide."""
        moments = [
            np.tile([loc, scale**-2], (site.loc.numel(), 1))
            for name, site in guide.sites().items()
            for loc, scale in [self._arguments(model, name)]
        ]
        center, precision = np.concatenate(moments).T
        return center, precision
