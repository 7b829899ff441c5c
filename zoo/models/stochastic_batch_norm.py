r"""Batch statistics as random variables: the noise of training is kept for prediction.

During training, a network with batch normalisation uses means and standard deviations that depend
on the rest of the mini-batch :math:`B`. They are random because the batch is, and the network
defines

.. math::
    p(y \mid x) = E_{\mu, \sigma}\, p(y \mid x, \mu, \sigma), \qquad
    \mu = \mu(B),\ \sigma = \sigma(B)

Ordinary training maximises :math:`E \log p(y \mid x, \mu(B), \sigma(B))`, a lower bound of the log
of this density. Ordinary prediction replaces the random variables by averages; here they stay
random. For every channel of every layer, independently,

.. math::
    r(\mu) = N(m_\mu, s_\mu^2), \qquad r(\sigma) = \mathrm{LN}(m_\sigma, s_\sigma^2)

with the moments over mini-batches of the training rows, :math:`m_\mu = E\mu(B)`, :math:`s_\mu^2 =
\mathrm{Var}\,\mu(B)`, :math:`m_\sigma = E\log\sigma(B)`, :math:`s_\sigma^2 = \mathrm{Var}\log
\sigma(B)`, which minimise :math:`\mathrm{KL}(p(\mu, \sigma) \| r(\mu) r(\sigma))`. A prediction
averages over draws of them, :math:`(x - \mu) / \sqrt{\sigma^2 + \varepsilon}\; \gamma + \beta`.

The sites are the buffers ``running_mean`` and ``running_var`` of the layers. Prior and guide are
both :math:`r`, so their KL is zero. Weights are points. In training mode the batch itself is the
draw. A plain `torch.nn.Sequential` without batch normalisation gets such a layer after every linear
or convolutional one except the last.

Use it for uncertainty from a network that already has batch normalisation, at no cost in training;
`zoo.stochastic_batch_norm` applies it to a trained network. The noise depends on the batch size: it
is noticeable at 16 and negligible at 256. It is not a posterior of the weights: it does not shrink
with more data, and away from the data it can be as overconfident as the network itself.

Reference: Atanov, Ashukha, Molchanov, Neklyudov and Vetrov (2018), *Uncertainty Estimation via
Stochastic Batch Normalization*.
"""

import copy
import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar

import pyro
import torch
from pyro.distributions import LogNormal, Normal
from torch import Tensor, nn
from torch.distributions import constraints

from guides.base import Composite, Guide
from guides.stochastic_batch_norm import MIN_SCALE, START_SCALE, Moments, StochasticBatchNormGuide
from zoo.errors import ConfigError, PriorError
from zoo.infer.normalisation import moments_of_batches, statistic_name, tracked_layers
from zoo.network.bnn import BNN
from zoo.network.lifecycle import TrainingRows
from zoo.network.method import Method
from zoo.network.nets.normalised import with_batch_norm
from zoo.network.slots import Slot
from zoo.priors import SlotPrior
from zoo.registry import ExpectedFailure, Recipe, register

#: Number of mini-batches for the moments, enough for standard deviations within 2%.
NUM_BATCHES = 1000


class StochasticBatchNorm(SlotPrior):
    """Distribution of a channel's statistic over mini-batches; narrow until moments are matched."""

    old_names: ClassVar[tuple[str, ...]] = ("BatchMean", "BatchVariance")

    loc: Tensor
    scale: Tensor

    @classmethod
    def support_of(cls, slot: Slot) -> constraints.Constraint:
        """Return the positive numbers for a variance, all real numbers for a mean."""
        return constraints.positive if slot.positive else constraints.real

    def setup(self) -> None:
        """Make buffers of the moments; for a variance, those of its logarithm."""
        is_statistic = self.slot.name.endswith(("running_mean", "running_var"))
        if self.slot.layer != "normalisation" or not is_statistic:
            raise PriorError(
                "StochasticBatchNorm is the distribution of the running_mean and running_var of "
                f"batch normalisation. The slot {self.slot.name!r} is neither."
            )
        self.register_buffer("loc", self.start())
        self.register_buffer("scale", torch.full_like(self.loc, START_SCALE))

    def start(self) -> Tensor:
        """Return the running average, or the logarithm of a running variance."""
        value = self.slot.value
        if not self.slot.positive:
            return value.clone()
        # The running variance of a dead channel is zero.
        return value.clamp(min=torch.finfo(value.dtype).tiny).log()

    def model(self) -> Tensor:
        """Sample the statistic of every channel."""
        family = LogNormal if self.slot.positive else Normal
        value: Tensor = pyro.sample(self.slot.name, family(self.loc, self.scale).to_event(1))
        return value

    def guide(self, init_scale: float) -> Guide:
        """Return the same distribution."""
        return StochasticBatchNormGuide(
            self.slot.name, self.start(), is_variance=self.slot.positive
        )

    @torch.no_grad()
    def match(self, moments: Moments) -> None:
        """Take the moments of the statistic; for a variance, those of its logarithm."""
        self.loc.copy_(moments.mean)
        self.scale.copy_(moments.scale)


class StochasticBatchNormNetwork(BNN):
    """A network whose batch statistics are sampled outside of training."""

    num_batches: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))
        for name, slot in self.slots.items():
            if slot.layer == "normalisation" and not isinstance(
                self.prior(name), StochasticBatchNorm
            ):
                raise PriorError(
                    f"the distribution of {name!r} comes from the mini-batches. "
                    f"It cannot be {self.priors[name]}; only 'noise' can be given a prior."
                )

    def network_slots(self, bayesian: Iterable[str] | None) -> list[Slot]:
        """Return the statistics of every layer; the parameters are points."""
        if bayesian is not None:
            raise ConfigError(
                "stochastic_batch_norm trains every parameter as a point: leave 'bayesian' out."
            )
        slots = []
        for name, layer in tracked_layers(self.net).items():
            mean, variance = layer.running_mean, layer.running_var
            assert mean is not None
            assert variance is not None
            slots += [
                Slot(statistic_name(name, "mean"), mean, "normalisation"),
                Slot(statistic_name(name, "var"), variance, "normalisation", positive=True),
            ]
        return slots

    def evaluate(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the network's outputs; layers in training mode normalise by the batch."""
        inputs = dict(values)
        for name, layer in tracked_layers(self.net).items():
            mean = inputs.pop(statistic_name(name, "mean"), None)
            variance = inputs.pop(statistic_name(name, "var"), None)
            if mean is not None and variance is not None and not layer.training:
                inputs |= _as_gain_and_offset(name, layer, mean, variance)
        return super().evaluate(inputs, x)

    @property
    def has_statistics(self) -> bool:
        """Whether the distribution of the statistics is known."""
        return bool(self.num_batches > 0)

    def match(self, guide: Composite, batches: Iterable[Tensor]) -> None:
        """Match prior and guide to the moments of the statistics over batches.

        Parameters
        ----------
        guide
            The guide of this model.
        batches
            Rows of mini-batches, of the batch size of training.
        """
        moments = moments_of_batches(self, batches)
        if not all(m.count for m in moments.values()):
            raise ConfigError("no statistics of a layer were seen: give at least one batch.")
        if all(bool((m.scale <= MIN_SCALE).all()) for m in moments.values()):
            warnings.warn(
                "the statistics are the same in every batch, so that predictions do not vary: "
                "choose a batch_size smaller than the number of rows.",
                stacklevel=2,
            )
        for name, matched in moments.items():
            prior, posterior = self.prior(name), guide[name]
            assert isinstance(prior, StochasticBatchNorm)
            assert isinstance(posterior, StochasticBatchNormGuide)
            prior.match(matched)
            posterior.match(matched)
        self.num_batches.fill_(max(m.count for m in moments.values()))


def _as_gain_and_offset(
    name: str, layer: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor
) -> dict[str, Tensor]:
    r"""Return parameters and buffers that normalise by given statistics.

    torch has no gradient with respect to running statistics. The layer therefore gets mean zero and
    :math:`\sigma^2 + \varepsilon = 1`, and the statistics enter through the gain :math:`\gamma /
    \sqrt{\sigma^2 + \varepsilon}` and the offset.
    """
    gain = layer.weight * torch.rsqrt(variance + layer.eps)
    return {
        f"{name}.weight".lstrip("."): gain,
        f"{name}.bias".lstrip("."): layer.bias - mean * gain,
        statistic_name(name, "mean"): torch.zeros_like(mean),
        statistic_name(name, "var"): torch.full_like(variance, 1 - layer.eps),
    }


def _with_gains(net: nn.Module) -> nn.Module:
    """Return a copy in which every normalisation layer has a gain and an offset."""
    net = copy.deepcopy(net)
    for layer in tracked_layers(net).values():
        if not layer.affine:
            assert layer.running_var is not None
            ones = torch.ones_like(layer.running_var)
            layer.weight = nn.Parameter(ones, requires_grad=False)
            layer.bias = nn.Parameter(torch.zeros_like(ones), requires_grad=False)
            layer.affine = True
    return net


@register(
    priors={"*running_mean": "StochasticBatchNorm()", "*running_var": "StochasticBatchNorm()"},
    recipe=Recipe(num_steps=3000, batch_size=16, lr=3e-3, kl_warmup=0.0),
    reference="Atanov et al. (2018), Uncertainty Estimation via Stochastic Batch Normalization",
    exactness="point",
    small_problem={"data": "diabetes", "net": "mlp:10-5-1", "likelihood": "gaussian(noise=0.7)"},
    expected_failures={
        "guide_covers_model": ExpectedFailure(
            "matches no slot", "weights are points without a prior to swap"
        ),
        "minibatch_is_unbiased": ExpectedFailure(
            "mean over batches", "a batch is normalised by its own statistics: that is the noise"
        ),
        "gradients_reach_every_parameter": ExpectedFailure(
            "no gradient reaches", "the guide is fitted by moments, not by gradients"
        ),
        "prior_swap": ExpectedFailure(
            "has the wrong support",
            "the batches determine the distribution of the statistics, and weights are points",
        ),
        "reaches_its_own_optimum": ExpectedFailure(
            "has no batch normalisation", "the statistics are matched by moments, not by an ELBO"
        ),
        "recovers_linear_regression": ExpectedFailure(
            "has no batch normalisation", "a linear model has no statistics to make random"
        ),
    },
)
class StochasticBatchNormMethod(Method):
    """Random statistics in every normalisation layer, weights as points."""

    network = StochasticBatchNormNetwork
    has_posterior: ClassVar[bool] = False
    own_guide = "stochastic_batch_norm has a guide of its own"

    def prepared(self, net: nn.Module) -> nn.Module:
        """Add normalisation layers to a network without any."""
        return _with_gains(with_batch_norm(net))

    def after_training(self, model: BNN, guide: Guide, rows: TrainingRows) -> None:
        """Match the moments of the statistics over `NUM_BATCHES` batches."""
        assert isinstance(model, StochasticBatchNormNetwork)
        assert isinstance(guide, Composite)
        model.match(guide, islice(rows.full(), NUM_BATCHES))
