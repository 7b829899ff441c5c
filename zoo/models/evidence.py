r"""Exact posterior and exact evidence of models that are linear in their parameters.

Model and posterior, with :math:`\Phi` the derivatives of the outputs by the weights:

.. math::
    w_i \sim N(m_i, s_i^2), \qquad y \sim N(\Phi w, \sigma^2 I), \qquad
    q(w) = p(w \mid y) = N(\hat w, A^{-1}), \quad A = S^{-2} + \sigma^{-2} \Phi^\top \Phi

.. math::
    \log p(y) = \log p(y \mid \hat w) + \log p(\hat w) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |A|

No training step is taken. If the noise is not given, it is set to the value that maximises the
evidence (the second level of inference). The metric ``log_evidence`` is in units of the
standardised target; between runs on the same data it compares networks, priors and noise.
`zoo.infer.evidence` has the same algebra for plain arrays, and code lengths.

Use it for linear and polynomial regression (``--net linear``, ``--net polynomial:3``), as the
ground truth for approximations, and to choose a degree or a prior without held-out rows.

It rejects likelihoods other than a Gaussian with a single noise, networks that are not linear in
their weights, and more than 4000 unknowns. The evidence compares whole models, including their
priors: a prior that is too wide is penalised like a degree that is too high. With few rows,
evidence that was maximised over the noise is slightly too large.

Reference: MacKay (1992), *Bayesian Interpolation*, Neural Computation.
"""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from guides.base import Guide
from guides.laplace import LaplaceGuide
from zoo.errors import ConfigError
from zoo.infer.curvature import output_jacobians
from zoo.infer.evidence import Array, LinearModel, best_noise_precision
from zoo.likelihoods import Gaussian, spell
from zoo.models.laplace import unconstrained_parts
from zoo.models.mean_field import MeanFieldNetwork
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.registry import ExpectedFailure, Recipe, register

MAX_UNKNOWNS = 4000
#: Number of rows whose derivatives are computed at once.
CHUNK_ROWS = 1024
#: Tolerated rounding error of a sum of outputs, relative to their size.
LINEAR_TOLERANCE = 1e-3


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(num_steps=1, batch_size=128, kl_warmup=0.0, init_scale=1e-3),
    tasks=("regression",),
    linear=True,
    reference="MacKay (1992), Bayesian Interpolation",
    exactness="exact",
    expected_failures={
        "seed_reproduces": ExpectedFailure(
            "runs with different seeds are the same",
            "the posterior is exact: another seed does not change it",
        ),
        "beats_the_prior": ExpectedFailure(
            "log density per row", "the posterior is exact however few steps are requested"
        ),
    },
)
class EvidenceMethod(Method):
    """Standard normal priors; the guide is that of `guides.laplace`, which is exact here."""

    network = MeanFieldNetwork
    own_guide = "evidence has the exact posterior"
    takes_steps: ClassVar[bool] = False  # type: ignore[misc]

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return a guide that starts at the network's weights; `after_training` makes it exact."""
        return LaplaceGuide(unconstrained_parts(model, init_scale))

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Return the same guide: the exact posterior has all correlations."""
        return self.guide(model, init_scale)

    def check(self, model: BNN, x: Tensor) -> None:
        """Reject models without a closed form."""
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
        """Test f(a + b) + f(0) = f(a) + f(b) for random weights and inputs."""
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
        """Set the guide to the exact posterior, and a learned noise to its optimum."""
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
