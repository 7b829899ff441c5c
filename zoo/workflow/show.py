"""A method in words: what ``zoo show`` prints."""

from collections.abc import Mapping

import pyro
import torch

from guides.mean_field import MeanField
from zoo.errors import ConfigError
from zoo.fit.build import create
from zoo.infer.svi.objective import site_divergences
from zoo.likelihoods import parse_likelihood
from zoo.network.nets import build_net
from zoo.registry import get


def describe_method(
    name: str,
    *,
    net: str,
    likelihood: str,
    priors: Mapping[str, str] | None = None,
    bayesian: tuple[str, ...] | None = None,
) -> str:
    """Return the documentation of a method, its recipe, and every slot for a given network.

    Parameters
    ----------
    name
        The method.
    net, likelihood
        Text that names them; a network given by sizes decides the number of inputs and outputs.
    priors, bayesian
        As for a fit.
    """
    entry = get(name)
    network = build_net(net, *_sizes(net))
    model = create(
        name,
        network,
        likelihood=parse_likelihood(likelihood),
        num_data=1,
        priors=priors,
        bayesian=bayesian,
    )
    guide = model.guide(init_scale=entry.recipe.init_scale)
    with torch.no_grad(), pyro.settings.context(module_local_params=True):
        divergences = site_divergences(model.sample_slots, guide)
    lines = [entry.documentation, "", f"Recipe: {entry.recipe}", "", f"Slots of {net}:"]
    for slot, prior in model.priors.items():
        lines.append(f"  {slot}  {tuple(model.slots[slot].shape)}  ~ {prior}")
        part = guide[slot]
        assert isinstance(part, MeanField)
        for site in part.names:
            analytic = "analytic KL" if divergences[site][1] else "Monte Carlo KL"
            lines.append(
                f"      {site}: {_family(part[site].distribution())} posterior, {analytic}"
            )
    points = [n for n, _ in model.net.named_parameters() if n not in model.slots]
    if points:
        lines.append(f"  trained as points: {', '.join(points)}")
    return "\n".join(lines)


def _family(posterior: torch.distributions.Distribution) -> str:
    while isinstance(posterior, torch.distributions.Independent):
        posterior = posterior.base_dist
    return (
        "Normal" if isinstance(posterior, torch.distributions.Normal) else type(posterior).__name__
    )


def _sizes(net: str) -> tuple[int, int, tuple[int, int, int] | None]:
    """Return inputs, outputs and image shape that a network's text implies."""
    name, _, argument = net.partition(":")
    if name == "mlp" and argument:
        numbers = argument.partition(":")[0].split("-")
        if len(numbers) < 2 or not all(n.isascii() and n.isdigit() for n in numbers):
            raise ConfigError(f"the sizes of a network look like mlp:64-100-10. Got {net!r}.")
        return int(numbers[0]), int(numbers[-1]), None
    if name.startswith("lenet"):
        return 784, 10, (1, 28, 28)
    return 4, 2, None
