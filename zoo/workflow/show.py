"""Description of a method: the output of ``zoo show``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyro
import torch
from torch import Tensor

from guides.base import Composite
from zoo.errors import ConfigError
from zoo.fit.build import create
from zoo.infer.svi.objective import site_divergences
from zoo.network.bnn import BNN
from zoo.network.nets import build_net
from zoo.registry import Entry, get
from zoo.workflow.graph import model_graph
from zoo.workflow.options import option_lines
from zoo.workflow.source import guide_module, guide_source, model_source

if TYPE_CHECKING:
    import graphviz


@dataclass(frozen=True)
class Shown:
    """A method with an untrained network, and rows of the right shape."""

    entry: Entry
    net: str
    model: BNN
    guide: Composite
    x: Tensor

    def text(self) -> str:
        """Return the summary, model and guide as code, recipe, options and slots."""
        parts = [
            self.entry.documentation.split("\n\n")[0],
            f"Reference: {self.entry.reference}",
            f"Model ({self.entry.method.__module__}):\n\n{model_source(self.entry)}",
        ]
        if module := guide_module(self.entry, self.guide):
            parts.append(f"Guide ({module}):\n\n{guide_source(module)}")
        parts.append(f"Recipe: {self.entry.recipe}")
        if options := option_lines(self.entry):
            parts.append("\n  ".join(["Options:", *options]))
        parts.append("\n  ".join([f"Slots of {self.net}:", *self._slot_lines()]))
        return "\n\n".join(parts)

    def graph(self) -> "graphviz.Digraph":
        """Return the graph of the model."""
        return model_graph(self.model, self.guide, self.x)

    def _slot_lines(self) -> list[str]:
        with torch.no_grad(), pyro.settings.context(module_local_params=True):
            divergences = site_divergences(self.model.sample_slots, self.guide)
        lines = []
        for slot, prior in self.model.priors.items():
            lines.append(f"{slot}  {tuple(self.model.slots[slot].shape)}  ~ {prior}")
            for site, posterior in self.guide[slot].distributions().items():
                analytic = "analytic KL" if divergences[site][1] else "Monte Carlo KL"
                lines.append(f"    {site}: {_family(posterior)} posterior, {analytic}")
        points = [n for n, _ in self.model.net.named_parameters() if n not in self.model.slots]
        return [*lines, f"trained as points: {', '.join(points)}"] if points else lines


def show_method(
    name: str,
    *,
    net: str,
    likelihood: str,
    priors: Mapping[str, str] | None = None,
    bayesian: tuple[str, ...] | None = None,
) -> Shown:
    """Build a method with a network of the sizes in its text."""
    entry = get(name)
    num_inputs, num_outputs, image_shape = _sizes(net)
    x = torch.zeros(2, *(image_shape or (num_inputs,)))
    model = create(
        name,
        build_net(net, num_inputs, num_outputs, image_shape),
        likelihood=likelihood,
        num_data=len(x),
        priors=priors,
        bayesian=bayesian,
    ).eval()
    return Shown(entry, net, model, model.guide(init_scale=entry.recipe.init_scale), x)


def _family(posterior: torch.distributions.Distribution) -> str:
    while isinstance(posterior, torch.distributions.Independent):
        posterior = posterior.base_dist
    is_normal = isinstance(posterior, torch.distributions.Normal)
    return "Normal" if is_normal else type(posterior).__name__


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
