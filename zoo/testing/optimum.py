r"""Training must end at the maximum of the ELBO of a method's own prior and posterior.

A method is trained on a small regression with its default priors and guide. Then the ELBO

.. math:: L(\theta) = \frac1S \sum_s \log p(y, z_s) - \log q_\theta(z_s), \qquad z_s = z(\theta,
\epsilon_s)

is computed from densities alone: without the training loop, without closed forms of divergences,
with all rows at once and with fixed noise :math:`\epsilon_s`. A quasi-Newton method maximises it,
starting at the trained parameters. If training had another objective (a divergence with a wrong
weight, a missing site, another prior), this finds a higher ELBO. The gain is estimated with new
noise.
"""

from collections.abc import Callable

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call

from guides.base import Guide
from zoo.fit.build import create
from zoo.infer.predict.draws import prior_of_one
from zoo.infer.svi.loop import SVI
from zoo.network.bnn import BNN
from zoo.network.nets import mlp
from zoo.registry import Entry, Recipe

#: Rows, noise and inputs of the regression.
ROWS, NOISE, INPUTS = 30, 0.5, 2
#: Draws for an ELBO, and the largest gain in nats that is accepted.
DRAWS = 1000
TOLERANCE = 0.1
RECIPE = Recipe(num_steps=3000, batch_size=ROWS, lr=0.05, schedule="cosine", kl_warmup=0.25)


def reaches_its_own_optimum(entry: Entry) -> str:
    """Training ends where no change of the guide raises the ELBO of the method's own model."""
    model, guide, x, y = _trained(entry)
    parameters = {
        name: p.detach().clone() for name, p in guide.named_parameters() if p.requires_grad
    }
    if not parameters:
        raise AssertionError("the guide has no parameters that an ELBO could move")
    elbo = _elbo(model, guide, x, y)
    better = _maximised(elbo, parameters)
    gain = float((elbo(better, seed=1) - elbo(parameters, seed=1)).detach())
    assert gain < TOLERANCE, f"the ELBO of the trained guide can be raised by {gain:.2f} nats"
    return f"the trained ELBO can be raised by {max(gain, 0.0):.3f} nats"


def _trained(entry: Entry) -> tuple[BNN, Guide, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    noise = NOISE * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    y = x[:, 0] - 0.5 * x[:, 1] + noise
    has_structure = any("structure" in pattern for pattern in entry.priors)
    sizes = [INPUTS, 3, 1] if has_structure else [INPUTS, 1]
    torch.manual_seed(0)
    model = create(
        entry.name, mlp(sizes).double(), likelihood=f"gaussian(noise={NOISE})", num_data=ROWS
    ).double()
    guide: Guide = model.guide(init_scale=0.05)
    model.method.check(model, x[:2])
    svi = SVI(model, guide, x, y, recipe=RECIPE, seed=0, num_particles=2, mode="replay")
    svi.run(progress_bar=False)
    return model.eval(), guide, x, y


def _elbo(model: BNN, guide: Guide, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """Return the ELBO as a function of the guide's parameters, from densities of draws."""

    class Estimate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.guide = guide

        def forward(self) -> Tensor:
            sites = guide.draw(DRAWS)
            log_q = torch.vmap(guide.log_density)(sites)
            densities, slots = torch.vmap(lambda one: prior_of_one(model, one))(sites)
            priors = torch.stack(list(densities.values())).sum(0)
            f = torch.vmap(lambda draw: model.evaluate(draw, x))(slots)
            likelihood = model.likelihood.distribution(f).log_prob(y).sum(-1)
            total: Tensor = (likelihood + priors - log_q).mean()
            return total

    estimate = Estimate()

    def elbo(parameters: dict[str, Tensor], seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        named = {f"guide.{name}": value for name, value in parameters.items()}
        with pyro.validation_enabled(False):
            value: Tensor = functional_call(estimate, named, ())
        return value

    return elbo


def _maximised(
    elbo: Callable[[dict[str, Tensor]], Tensor], start: dict[str, Tensor]
) -> dict[str, Tensor]:
    moved = {name: value.clone().requires_grad_() for name, value in start.items()}
    assert elbo(moved).requires_grad, "the posterior does not depend on the trained parameters"
    optimizer = torch.optim.LBFGS(
        list(moved.values()), max_iter=60, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -elbo(moved)
        loss.backward()
        return loss

    optimizer.step(closure)
    return {name: value.detach() for name, value in moved.items()}
