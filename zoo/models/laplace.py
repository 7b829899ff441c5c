r"""Laplace approximation: the mode of the posterior, and the curvature around it.

Model and posterior, with :math:`\hat w` the mode of :math:`p(w \mid D)`:

.. math::
    w_i \sim N(0, 1), \qquad y_n \sim p(y \mid f_w(x_n)), \qquad q(w) = N(\hat w, H^{-1})

:math:`H` is the generalised Gauss-Newton matrix of the negative log joint,

.. math::
    H = I + \sum_n J_n^\top \Lambda_n J_n, \qquad J_n = \nabla_w f_{\hat w}(x_n),

and :math:`\Lambda_n` the Fisher information of an observation about the outputs. With up to 4000
unknowns it is a full matrix, with more its diagonal; ``--option curvature=full`` enforces the
matrix. The ordinary training loop finds the mode with a point as posterior, so that the objective
is the negative log joint. After the last step the curvature is computed from all training rows, and
with it the evidence

.. math::
    \log p(D) \approx \log p(D, \hat w) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |H| .

A learned noise scale maximises this evidence, too, and is re-estimated during training. Maximised
together with the weights it would go to zero wherever the network can interpolate the rows.

Predictions use the network linearised at the mode, :math:`f_{\hat w}(x) + \nabla_w f_{\hat w}(x)\,
(w - \hat w)`, which is the model :math:`H` belongs to. Draws of :math:`w` put into the network
itself would leave the region where the curvature is valid, and predict badly.

Use it to give a network that is trained anyway a posterior at the cost of one more pass over the
data. It is exact for a linear model with Gaussian noise.

It fails where the posterior is not Gaussian around a single mode: other modes are ignored, and the
approximation is symmetric where the posterior is skewed (separable classes, counts near zero). It
is valid only at a mode, so train until convergence. The reported ELBO is that of the network
itself, not of the linearised one, and can be very low; it shows how poor the approximation is
without linearisation. The evidence of a network counts only one of its many equivalent modes. Scale
mixtures such as the horseshoe have an infinite density at zero instead of a mode and are rejected,
as is batch normalisation, whose statistics would have to change with the weights.

Reference: MacKay (1992), *A Practical Bayesian Framework for Backpropagation Networks*, Neural
Computation; linear predictions: Immer, Korzepa and Bauer (2021), *Improving Predictions of Bayesian
Neural Nets via Local Linearization*, AISTATS.
"""

from collections.abc import Mapping
from typing import Any, Literal

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
    most_probable_noise,
    prior_curvature,
    require_independent,
)
from zoo.infer.normalisation import tracked_layers
from zoo.models.mean_field import MeanFieldNetwork
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.priors import Options
from zoo.priors.plain import PlainPrior
from zoo.registry import Recipe, register

#: Largest number of unknowns for a full matrix, by default and on request.
MAX_JOINT = 4000
MAX_FULL_RANK = 10_000
#: Steps between two estimates of the noise: in the first `NOISE_EARLY` steps, and later.
NOISE_EVERY, NOISE_EARLY, NOISE_LATER = 100, 2000, 500


class LaplaceOptions(Options):
    """Settings of the guide."""

    curvature: Literal["auto", "full", "diagonal"] = Field(
        "auto",
        description="Full curvature matrix or its diagonal; auto is the matrix for up to "
        f"{MAX_JOINT} unknowns.",
    )


def unconstrained_parts(model: BNN, init_scale: float) -> dict[str, Guide]:
    """Return a factorised guide of every slot, for a `guides.joint.JointGuide`."""
    priors = {name: model.prior(name) for name in model.slots}
    return {
        name: prior.guide(init_scale)
        if isinstance(prior, PlainPrior)
        else MeanField(prior, init_scale=init_scale)
        for name, prior in priors.items()
    }


class LaplaceNetwork(MeanFieldNetwork):
    """A network that is replaced by its tangent at the mode, once that is known.

    Its parameters are then the mode.
    """

    def outputs(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs of the network, or of its tangent once the mode is known."""
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
        """Restore whether predictions are linear."""
        self.linearised = bool(state)

    def proper(self) -> BNN:
        """Return the model as defined, without linearisation."""
        copied = super().proper()
        copied.linearised = False
        return copied


@register(
    priors={"*": "Normal(0, 1)"},
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.0, init_scale=1e-3),
    reference="MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks",
    exactness="exact",
)
class LaplaceMethod(Method):
    """Standard normal priors on weights and biases; a point, then the curvature around it."""

    network = LaplaceNetwork
    options = LaplaceOptions

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return a point, started at the network's weights; leave the noise to `after_step`."""
        found = LaplaceGuide(unconstrained_parts(model, init_scale))
        if _noise_by_evidence(model, found):
            likelihood: Any = model.likelihood
            likelihood.log_noise.requires_grad_(False)
        return found

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Return the same guide with a full matrix, whatever the number of unknowns."""
        self.settings = LaplaceOptions(curvature="full")
        self._require_feasible(model)
        return self.guide(model, init_scale)

    def check(self, model: BNN, x: Tensor) -> None:
        """Reject priors without a mode, and layers whose statistics depend on the weights."""
        require_independent(model)
        self._require_feasible(model)
        layers = tracked_layers(model.net)
        if layers:
            raise ConfigError(
                "the method 'laplace' does not support batch normalisation, whose statistics "
                f"change with the weights. Got it in layer {next(iter(layers))!r}."
            )

    def _require_feasible(self, model: BNN) -> None:
        """Reject a matrix that is too large."""
        size = sum(slot.value.numel() for slot in model.slots.values())
        if self.settings.curvature == "full" and size > MAX_FULL_RANK:
            raise ConfigError(
                f"a full curvature matrix of {size} unknowns needs {size**2:,} numbers; at most "
                f"{MAX_FULL_RANK} unknowns are accepted."
            )

    def after_step(self, model: BNN, guide: Guide, rows: TrainingRows, step: int) -> None:
        """Re-estimate the noise scale."""
        if _noise_by_evidence(model, guide) and _is_due(step):
            self._set_noise(model, guide, rows)

    def _set_noise(self, model: BNN, guide: Any, rows: TrainingRows) -> None:
        likelihood: Any = model.likelihood
        with torch.no_grad():
            likelihood.log_noise.fill_(most_probable_noise(model, guide, rows.x, rows.y))

    def after_training(self, model: BNN, guide: Guide, rows: TrainingRows) -> None:
        """Set the curvature of the guide, and the network's parameters to the mode."""
        if not isinstance(guide, LaplaceGuide):
            return
        require_independent(model)
        if _noise_by_evidence(model, guide):
            self._set_noise(model, guide, rows)
        curvature, size = self.settings.curvature, guide.mode.numel()
        diagonal = curvature == "diagonal" or (curvature == "auto" and size > MAX_JOINT)
        precision = gauss_newton(model, guide, rows.x, diagonal=diagonal)
        (precision if diagonal else precision.diagonal()).add_(prior_curvature(model, guide))
        try:
            guide.set_precision(precision, log_joint(model, guide, rows.x, rows.y))
        except ValueError as error:
            raise ConfigError(
                f"there is no Laplace approximation here: {error}. Train longer, or use a prior "
                "that is curved everywhere, such as Normal(0, 1)."
            ) from None
        with torch.no_grad():
            for name, value in guide.medians().items():
                if name != "noise":
                    model.net.get_parameter(name).copy_(value)
        model.linearised = True

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return False: the loss is minus the log joint."""
        return False


def _noise_by_evidence(model: BNN, guide: Guide) -> bool:
    """Whether the noise is one number that is learned, without a prior."""
    learned = getattr(model.likelihood, "learned", False) and "noise" not in model.slots
    return bool(learned) and isinstance(guide, LaplaceGuide) and not guide.has_curvature


def _is_due(step: int) -> bool:
    """Whether the noise is re-estimated after a step."""
    return step % (NOISE_EVERY if step < NOISE_EARLY else NOISE_LATER) == 0
