r"""Laplace approximation: the mode of the posterior, and the curvature around it.

Model and posterior, with :math:`\hat w` the mode of :math:`p(w \mid D)`:

.. math::
    w_i \sim N(0, 1), \qquad y_n \sim p(y \mid f_w(x_n)), \qquad q(w) = N(\hat w, H^{-1})

:math:`H` is the generalised Gauss-Newton matrix of the negative log joint,

.. math::
    H = I + \sum_n J_n^\top \Lambda_n J_n, \qquad J_n = \nabla_w f_{\hat w}(x_n),

and :math:`\Lambda_n` the Fisher information of an observation about the outputs. Up to
4000 unknowns it is a full matrix, above that its diagonal (``--option curvature=full`` insists on
the matrix). The mode is trained by the ordinary loop, with a point as its posterior, so that the
objective is the negative log joint; the curvature is computed after the last step, from all training rows, and
with it the evidence

.. math::
    \log p(D) \approx \log p(D, \hat w) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |H| .

Predictions use the network that :math:`H` belongs to, which is linear in the weights around the
mode: :math:`f_{\hat w}(x) + \nabla_w f_{\hat w}(x)\,(w - \hat w)`. Draws of :math:`w` put into
the network itself would leave the region where the curvature means something, and predict badly.

Use it to give a network that is trained anyway a posterior at the cost of one more pass over the
data. It is exact for a linear model with Gaussian noise.

It fails where the posterior is not a Gaussian around one mode: it knows nothing of other modes, it
is symmetric where the posterior is skewed (classes that are separated, counts near zero), and it is
useless at a point that is no mode, so train to the end. The ELBO of a run is that of the network,
not of the linear one, and can be very low: that is a finding about the approximation, and why
predictions are linear. The evidence of a network counts one of its many equivalent modes. Scale
mixtures such as the horseshoe have an infinite density at zero, not a mode; they are refused. So is
batch normalisation, whose statistics would have to move with the weights.

Reference: MacKay (1992), *A Practical Bayesian Framework for Backpropagation Networks*, Neural
Computation; linear predictions: Immer, Korzepa and Bauer (2021), *Improving Predictions of Bayesian
Neural Nets via Local Linearization*, AISTATS.
"""

from collections.abc import Mapping
from typing import Literal

import pyro
import torch
from pydantic import Field
from torch import Tensor

from guides.base import Guide
from guides.laplace import LaplaceGuide
from guides.mean_field import MeanField
from zoo.errors import ConfigError
from zoo.infer.curvature import (
    along,
    gauss_newton,
    log_joint,
    prior_curvature,
    require_independent,
)
from zoo.infer.normalisation import tracked_layers
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.priors import Options
from zoo.priors.plain import PlainPrior
from zoo.registry import Recipe, register

#: Unknowns up to which the curvature is a matrix, and up to which it may be asked for.
MAX_JOINT = 4000
MAX_FULL_RANK = 10_000


class LaplaceOptions(Options):
    """Settings of the guide."""

    curvature: Literal["auto", "full", "diagonal"] = Field(
        "auto",
        description="Whether the curvature is a full matrix or its diagonal; auto takes the "
        f"matrix up to {MAX_JOINT} unknowns.",
    )


class LaplaceNetwork(BNN):
    """A network whose predictions are linear in the weights around the mode, once that is known.

    Its parameters are then the mode.
    """

    def sample_slots(self) -> dict[str, Tensor]:
        r"""Draw every weight, :math:`w_i \sim N(0, 1)` or another prior with independent elements."""
        weights = {}
        for name in self.slots:
            prior = self.prior(name)
            if not isinstance(prior, PlainPrior):  # refused before training
                return super().sample_slots()
            weights[name] = pyro.sample(name, prior.distribution())
        return weights

    def outputs(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs of the network, or of its tangent at the mode once that is known."""
        if not self.linearised:
            return self.evaluate(values, x)
        mode = {name: self.net.get_parameter(name) for name in self.slots if name != "noise"}
        step = {name: values[name] - value for name, value in mode.items()}
        f, change = along(lambda weights: self.evaluate(weights, x), mode, step)
        return f + change

    def get_extra_state(self) -> Tensor:
        """Return whether predictions are linear."""
        return torch.tensor(self.linearised)

    def set_extra_state(self, state: Tensor) -> None:
        """Remember whether predictions are linear."""
        self.linearised = bool(state)

    def proper(self) -> BNN:
        """Return the model as it is defined, whose outputs are those of the network itself."""
        copied = super().proper()
        copied.linearised = False
        return copied


def point_guide(model: BNN, init_scale: float) -> LaplaceGuide:
    """Return a point of every site, started at the network's weights.

    Sites of priors that are models of their own, which `LaplaceMethod.check` refuses, start at the
    medians of those.
    """
    priors = {name: model.prior(name) for name in model.slots}
    parts = {
        name: prior.guide(init_scale) if isinstance(prior, PlainPrior) else MeanField(prior)
        for name, prior in priors.items()
    }
    return LaplaceGuide(parts)


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.0, init_scale=1e-3),
    reference="MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks",
    exactness="exact",
    analytic_kl=True,
)
class LaplaceMethod(Method):
    """Standard normal priors on every weight and bias; a point, then the curvature around it."""

    network = LaplaceNetwork
    options = LaplaceOptions

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return a point that starts at the network's weights."""
        return point_guide(model, init_scale)

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Return the same guide, with all correlations however many unknowns there are."""
        self.settings = LaplaceOptions(curvature="full")
        self._require_feasible(model)
        return self.guide(model, init_scale)

    def check(self, model: BNN, x: Tensor) -> None:
        """Refuse priors without a mode, and layers whose statistics depend on the weights."""
        require_independent(model)
        self._require_feasible(model)
        layers = tracked_layers(model.net)
        if layers:
            raise ConfigError(
                "the method 'laplace' does not take batch normalisation, whose statistics change "
                f"with the weights. Got it in layer {next(iter(layers))!r}."
            )

    def _require_feasible(self, model: BNN) -> None:
        """Refuse a matrix that is too large."""
        size = sum(slot.value.numel() for slot in model.slots.values())
        if self.settings.curvature == "full" and size > MAX_FULL_RANK:
            raise ConfigError(
                f"a full curvature matrix of {size} unknowns needs {size**2:,} numbers; at most "
                f"{MAX_FULL_RANK} unknowns are accepted."
            )

    def is_diagonal(self, size: int) -> bool:
        """Tell whether the curvature of so many unknowns is its diagonal alone."""
        if self.settings.curvature == "auto":
            return size > MAX_JOINT
        return bool(self.settings.curvature == "diagonal")

    def after_training(self, model: BNN, guide: Guide, rows: TrainingRows) -> None:
        """Give the guide the curvature at the mode, and the network the mode."""
        if not isinstance(guide, LaplaceGuide):
            return
        require_independent(model)
        diagonal = self.is_diagonal(guide.mode.numel())
        precision = gauss_newton(model, guide, rows.x, diagonal=diagonal)
        (precision if diagonal else precision.diagonal()).add_(prior_curvature(model, guide))
        try:
            guide.set_precision(precision, log_joint(model, guide, rows.x, rows.y))
        except ValueError as error:
            raise ConfigError(
                f"there is no Laplace approximation here: {error}. Train longer, or take a prior "
                "that is curved everywhere, such as Normal(0, 1)."
            ) from None
        with torch.no_grad():
            for name, value in guide.medians().items():
                if name != "noise":
                    model.net.get_parameter(name).copy_(value)
        model.linearised = True

    def loss_is_elbo(self, model: BNN) -> bool:
        """It is not: it is minus the log joint."""
        return False
