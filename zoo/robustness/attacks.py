"""What a posterior is tried with: noise on inputs, FGSM, noise on parameters, edges that are cut.

Attacks change the rows, or the values that draws put into the network. What comes of it is a matter
of `zoo.robustness.curves`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from zoo.infer.predict.draws import log_predictive_density, observation_distribution
from zoo.infer.rng import seeded
from zoo.network.bnn import BNN
from zoo.network.slots import network_slots, structure_slots

#: Rows whose gradients are computed in one call.
CHUNK_ROWS = 512

Values = dict[str, Tensor]


def noisy_inputs(x: Tensor, scale: float, *, seed: int) -> Tensor:
    r"""Return rows with Gaussian noise, :math:`x + s \varepsilon`.

    The same seed gives the same :math:`\varepsilon` for every scale, so that a curve over scales is
    not roughened by different noise.
    """
    with seeded(seed, x.device):
        return x + scale * torch.randn_like(x)


def fgsm_direction(model: BNN, values: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    r"""Return the direction of the fast gradient sign method, one sign per number of the input.

    .. math::
        d = \operatorname{sign} \nabla_x \left[-\log \frac1S \sum_s p(y \mid x, w_s)\right]

    What is attacked is the prediction, the average over draws, and not a single draw: that would
    leave the others alone. The attacked rows are :math:`x + \epsilon d`.

    Parameters
    ----------
    model
        The model that predicts.
    values
        What draws put into its network, draws in front.
    x, y
        Rows and their right targets, on the device of the model.

    References
    ----------
    Goodfellow, Shlens and Szegedy (2015), *Explaining and Harnessing Adversarial Examples*.
    """
    model.eval()
    num_draws = len(next(iter(values.values())))
    draws = [{name: value[index] for name, value in values.items()} for index in range(num_draws)]
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
    r"""Return a number per row whose gradient has the direction of that of :math:`-\log p(y)`.

    For classes it is the log odds :math:`\log (1 - p) - \log p`. Its gradient is that of
    :math:`-\log p`, divided by :math:`1 - p`: the same signs, and they do not vanish where the
    network is so sure of itself that :math:`p` is rounded to one.
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
    odds: Tensor = others - mixture.gather(-1, right).squeeze(-1)
    return odds


def network_values(model: BNN, values: Mapping[str, Tensor]) -> Values:
    """Return the weights and biases of every draw, those that are trained as points among them.

    Gains and offsets of normalisation layers are left out. A linearised network is a function of
    what is drawn alone.
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

    Every draw gets noise of its own; the same seed gives the same for every scale.
    """
    weights = network_values(model, values)
    with seeded(seed, next(iter(weights.values())).device):
        noisy = {name: value + scale * torch.randn_like(value) for name, value in weights.items()}
    return {**values, **noisy}


def without_edges(model: BNN, values: Mapping[str, Tensor], share: float, *, seed: int) -> Values:
    """Return draws in which a share of the edges of a graph network carry nothing.

    The edges are those with a choice of primitives, cut in a random order that is the same for
    every share: all weights of their primitives become zero.
    """
    edges = structure_slots(model.net)
    num_draws = len(next(iter(values.values())))
    order = torch.randperm(len(edges), generator=torch.Generator().manual_seed(seed))
    cut = [edges[index] for index in order[: round(share * len(edges))].tolist()]
    return {**values, **{e.name: e.value.new_zeros(num_draws, *e.shape) for e in cut}}
