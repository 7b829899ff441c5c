r"""The variational objective: Pyro's `TraceMeanField_ELBO` with a weight on the KL.

.. math::
    L = \frac{N}{B} \sum_{i \in B} -\log p(y_i \mid x_i, w) + \beta\, \mathrm{KL}(q \| p)
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from guides.base import Guide
from zoo.infer.normalisation import batch_statistics
from zoo.infer.rng import seeded
from zoo.infer.svi.elbo import MeanFieldELBO, closed_form
from zoo.network.bnn import BNN


class LatentScale(Messenger):
    """Multiplies the log density of every latent site, in a model as in a guide.

    The estimator takes the scale of an analytic KL from the guide's site and that of a Monte Carlo
    term from both, so the weight must be put on both sides. `pyro.poutine.scale` would also scale
    the likelihood, and refuses zero.
    """

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not msg["is_observed"]:
            scale = msg["scale"]  # one, unless there is another handler or a plate
            is_one = isinstance(scale, float) and scale == 1.0
            msg["scale"] = self.scale if is_one else self.scale * scale


class Objective(nn.Module):
    """Negative ELBO of a mini-batch, differentiable in the parameters of model and guide.

    The model is a module. Options are those of `zoo.infer.svi.loop.SVI`; with vectorised particles
    the network must accept weights with leading dimensions. The first call runs Pyro's checks,
    unless ``validate`` is false.
    """

    kl_weight: Tensor

    def __init__(
        self,
        model: Any,
        guide: Guide,
        num_particles: int = 1,
        *,
        vectorize_particles: bool = False,
        local: bool = False,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.guide = model, guide
        self.elbo = MeanFieldELBO(
            local=local,
            num_particles=num_particles,
            vectorize_particles=vectorize_particles,
            max_plate_nesting=1,
        )
        self._checked = not validate
        _use_channels_last(self)
        self.register_buffer("kl_weight", guide.some_tensor.new_ones(()))

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the loss of the model's arguments; `kl_weight` is the weight of the KL."""
        self.check_once(*batch)
        scale = LatentScale(self.kl_weight)
        model, guide = scale(self.model), scale(self.guide)
        return self.elbo.differentiable_loss(model, guide, *batch)

    def check_once(self, *batch: Tensor) -> None:
        """Run Pyro's checks before the first step; in evaluation mode, so that nothing changes."""
        if self._checked:
            return
        self._checked = True
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            self.elbo.check(self.model, self.guide, *batch)
        finally:
            for module, training in modes.items():
                module.training = training


def _use_channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions channels last, up to eight times faster on a CPU."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            # Not `contiguous`, which does nothing for a single channel.
            parameter.data = parameter.data.to(memory_format=torch.channels_last)


def site_divergences(program: Callable[[], Any], guide: Guide) -> dict[str, tuple[Tensor, bool]]:
    """Return the KL of each latent site and whether it is analytic.

    Sites without a closed form get the Monte Carlo term of one draw, as in the objective.
    """
    guide_trace = poutine.trace(guide).get_trace()
    model_trace = poutine.trace(poutine.replay(program, trace=guide_trace)).get_trace()
    divergences = {}
    for name, site in guide_trace.nodes.items():
        if site["type"] != "sample":
            continue
        q: Any = site["fn"]
        if name not in model_trace.nodes:  # auxiliary
            divergences[name] = (q.log_prob(site["value"]).sum(), False)
            continue
        p: Any = model_trace.nodes[name]["fn"]
        kl = closed_form(q, p)
        if kl is None:
            term = q.log_prob(site["value"]) - p.log_prob(site["value"])
            divergences[name] = (term.sum(), False)
        else:
            divergences[name] = (kl.sum(), True)
    return divergences


@torch.no_grad()
def total_divergence(model: BNN, guide: Guide, num_samples: int = 1) -> float:
    """Return the KL between guide and prior; Monte Carlo terms are averaged over draws."""
    device = guide.some_tensor.device
    with pyro.validation_enabled(False), seeded(0, device):
        totals = [
            sum(kl for kl, _ in site_divergences(model.sample_slots, guide).values())
            for _ in range(num_samples)
        ]
    return float(sum(totals) / num_samples)


#: Rows per chunk of `elbo_draws`, and draws of an estimate during training.
ELBO_ROWS = 4096
ELBO_DRAWS = 8


def estimate_elbo(model: Any, guide: Guide, *batch: Tensor) -> float:
    """Estimate the ELBO of rows from few draws, without side effects.

    `zoo.infer.svi.bound` has the estimate of a finished fit, with its error.
    """
    return float(elbo_draws(model, guide, *batch, num_draws=ELBO_DRAWS).mean())


@torch.no_grad()
def elbo_draws(
    model: Any,
    guide: Guide,
    *batch: Tensor,
    num_draws: int,
    local: bool = False,
    seed: int = 0,
) -> Tensor:
    """Return independent unbiased estimates of the ELBO of rows, scaled to the training set.

    Rows are the arguments of the model, processed in chunks; a model may have no arguments.
    """
    objective = Objective(model, guide, local=local, validate=False).eval()
    device = objective.kl_weight.device
    totals = objective.kl_weight.new_zeros(num_draws, dtype=torch.float64)
    with pyro.validation_enabled(False), seeded(seed, device), statistics_of_batches(model):
        chunks = list(zip(*(part.split(ELBO_ROWS) for part in batch), strict=True)) or [()]
        for chunk in chunks:
            rows = [part.to(device) for part in chunk]
            losses = torch.stack([objective(*rows) for _ in range(num_draws)])
            # Each chunk is scaled to the whole data set, so chunks are averaged by size.
            totals -= (len(rows[0]) / len(batch[0]) if rows else 1.0) * losses
    return totals


def statistics_of_batches(model: Any) -> contextlib.AbstractContextManager[None]:
    """Use the statistics of the batch in a network whose statistics are not drawn."""
    if not isinstance(model, BNN) or model.has_statistics:
        return contextlib.nullcontext()
    return batch_statistics(model.net)
