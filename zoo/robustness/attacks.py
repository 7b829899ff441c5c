"""Attacks: noise on inputs, FGSM, noise on parameters, cut edges.

Attacks change the rows or the network values of the draws. `zoo.robustness.curves` scores the
result.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from zoo.infer.predict.draws import log_predictive_density, observation_distribution, split_draws
from zoo.infer.rng import seeded
from zoo.network.bnn import BNN
from zoo.network.slots import network_slots, structure_slots

#: Rows whose gradients are computed in one call.
CHUNK_ROWS = 512

Values = dict[str, Tensor]


def noisy_inputs(x: Tensor, scale: float, *, seed: int) -> Tensor:
    r"""Return rows with Gaussian noise, :math:`x + s \varepsilon`.

    The same seed gives the same :math:`\varepsilon` for every scale, so that curves over scales are
    smooth.
    """
    with seeded(seed, x.device):
        return x + scale * torch.randn_like(x)


def fgsm_direction(model: BNN, values: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    r"""Return the direction of the fast gradient sign method, one sign per input element.

    .. math::
        d = \operatorname{sign} \nabla_x \left[-\log \frac1S \sum_s p(y \mid x, w_s)\right]

    The attack targets the average prediction over draws. Attacked rows are :math:`x + \epsilon d`.

    The values have draws as the first dimension; ``y`` are the true targets.

    Goodfellow, Shlens and Szegedy (2015), *Explaining and Harnessing Adversarial Examples*.
    """
    model.eval()
    draws = split_draws(values)
    directions = []
    for rows, targets in zip(x.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
        rows = rows.detach().requires_grad_()
        with torch.enable_grad():
            f = torch.stack([model.outputs(draw, rows) for draw in draws])
            observation = observation_distribution(model, f, values.get("noise"))
            loss = _wrongness(observation, targets).sum()
            (gradient,) = torch.autograd.grad(loss, rows)
        directions.append(gradient.sign())
    return torch.cat(directions)


def _wrongness(observation: torch.distributions.Distribution, y: Tensor) -> Tensor:
    r"""Return a number per row whose gradient has the signs of that of :math:`-\log p(y)`.

    For classes it is the log odds :math:`\log (1 - p) - \log p`. Its gradient is that of
    :math:`-\log p` divided by :math:`1 - p`. It has the same signs, but does not vanish if the
    network is so confident that :math:`p` is rounded to one.
    """
    if isinstance(observation, torch.distributions.Categorical):
        by_class = observation.logits
    elif isinstance(observation, torch.distributions.Bernoulli):
        f = observation.logits
        by_class = torch.nn.functional.logsigmoid(torch.stack([-f, f], dim=-1))
    else:
        return -log_predictive_density(observation.log_prob(y))
    mixture = log_predictive_density(by_class)
    right = y.long().unsqueeze(-1)
    others = mixture.scatter(-1, right, -torch.inf).logsumexp(-1)
    return others - mixture.gather(-1, right).squeeze(-1)


def network_values(model: BNN, values: Mapping[str, Tensor]) -> Values:
    """Return the weights and biases of every draw, including those trained as points.

    Gains and offsets of normalisation layers are excluded. A linearised network depends only on the
    drawn values.
    """
    num_draws = len(next(iter(values.values())))
    found = {}
    for slot in network_slots(model.net):
        if slot.name in values:
            found[slot.name] = values[slot.name]
        elif slot.layer != "normalisation" and not model.linearised:
            found[slot.name] = slot.value.expand(num_draws, *slot.shape)
    return found


def noisy_parameters(
    model: BNN, values: Mapping[str, Tensor], scale: float, *, seed: int
) -> Values:
    r"""Return draws with Gaussian noise on every weight and bias, :math:`w + s \varepsilon`.

    Every draw has its own noise; the same seed gives the same noise for every scale.
    """
    weights = network_values(model, values)
    with seeded(seed, next(iter(weights.values())).device):
        noisy = {name: value + scale * torch.randn_like(value) for name, value in weights.items()}
    return {**values, **noisy}


def without_edges(model: BNN, values: Mapping[str, Tensor], share: float, *, seed: int) -> Values:
    """Return draws in which a fraction of the edges of a graph network is cut.

    Only edges with a choice of primitives are cut, by setting all weights of their primitives to
    zero. The random order is the same for every fraction.
    """
    edges = structure_slots(model.net)
    num_draws = len(next(iter(values.values())))
    order = torch.randperm(len(edges), generator=torch.Generator().manual_seed(seed))
    cut = [edges[index] for index in order[: round(share * len(edges))].tolist()]
    return {**values, **{e.name: e.value.new_zeros(num_draws, *e.shape) for e in cut}}
