r"""Laplace approximation: the mode of the posterior, and the curvature around it.

Model and posterior, with :math:`\hat w` the mode of :math:`p(w \mid D)`:

.. math::
    w_i \sim N(0, 1), \qquad y_n \sim p(y \mid f_w(x_n)), \qquad q(w) = N(\hat w, H^{-1})

:math:`H` is the generalised Gauss-Newton matrix of the negative log joint,

.. math::
    H = I + \sum_n J_n^\top \Lambda_n J_n, \qquad J_n = \nabla_w f_{\hat w}(x_n),

and :math:`\Lambda_n` the Fisher information of an observation about the outputs. Up to
4000 unknowns it is a full matrix, above that its diagonal (``--guide full_rank`` insists on the
matrix). The mode is trained by the ordinary loop, with a posterior so narrow that the objective is
the negative log joint; the curvature is computed after the last step, from all training rows, and
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
from typing import Unpack

import torch
from torch import Tensor, nn

from guides.base import Guide
from guides.laplace import Laplace
from zoo.errors import ConfigError
from zoo.infer.curvature import (
    along,
    gauss_newton,
    log_joint,
    prior_curvature,
    require_independent,
)
from zoo.infer.normalisation import tracked_layers
from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN, BNNOptions, TrainingRows
from zoo.registry import Recipe, register

PRIORS = {"*": "Normal(0, 1)"}

#: Unknowns up to which the curvature is a matrix, and up to which it may be asked for.
MAX_JOINT = 4000
MAX_FULL_RANK = 10_000


class LaplaceBNN(BNN):
    """A network whose posterior is a Gaussian at its mode, and whose predictions are linear there.

    After `finish` the parameters of `net` are the mode.
    """

    is_full = False
    loss_is_elbo = False  # it is minus the log joint

    def guide(self, *, init_scale: float) -> Laplace:
        """Return a guide that starts at the network's weights."""
        return Laplace(super().guide(init_scale=init_scale).by_name())

    def full_rank_guide(self, *, init_scale: float) -> Laplace:
        """Return the same guide, with all correlations however many unknowns there are."""
        guide = self.guide(init_scale=init_scale)
        size = guide.mode.numel()
        if size > MAX_FULL_RANK:
            raise ConfigError(
                f"the guide 'full_rank' of {size} unknowns needs {size**2:,} numbers; at most "
                f"{MAX_FULL_RANK} unknowns are accepted."
            )
        self.is_full = True
        return guide

    def check(self, x: Tensor) -> None:
        """Refuse priors without a mode, and layers whose statistics depend on the weights."""
        require_independent(self)
        layers = tracked_layers(self.net)
        if layers:
            raise ConfigError(
                "the method 'laplace' does not take batch normalisation, whose statistics change "
                f"with the weights. Got it in layer {next(iter(layers))!r}."
            )

    def finish(self, guide: Guide, rows: TrainingRows) -> None:
        """Give the guide the curvature at the mode, and the network the mode."""
        if not isinstance(guide, Laplace):
            return
        require_independent(self)
        diagonal = not self.is_full and guide.mode.numel() > MAX_JOINT
        precision = gauss_newton(self, guide, rows.x, diagonal=diagonal)
        (precision if diagonal else precision.diagonal()).add_(prior_curvature(self, guide))
        try:
            guide.set_precision(precision, log_joint(self, guide, rows.x, rows.y))
        except ValueError as error:
            raise ConfigError(
                f"there is no Laplace approximation here: {error}. Train longer, or take a prior "
                "that is curved everywhere, such as Normal(0, 1)."
            ) from None
        with torch.no_grad():
            for name, value in guide.medians().items():
                if name != "noise":
                    self.net.get_parameter(name).copy_(value)
        self.linearised = True

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


@register(
    priors=PRIORS,
    recipe=Recipe(num_steps=3000, batch_size=128, lr=1e-2, kl_warmup=0.0, init_scale=1e-3),
    reference="MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks",
    exactness="exact",
    truth="exact",
    analytic_kl=True,
)
def laplace(net: nn.Module, likelihood: Likelihood, **options: Unpack[BNNOptions]) -> BNN:
    """Build the model: standard normal priors on every weight and bias."""
    return LaplaceBNN(net, likelihood, default_priors=PRIORS, **options)
