"""A model drawn as a graph of sites and plates, by Pyro and Graphviz."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from zoo.errors import ConfigError
from zoo.fit.store import atomic_path

if TYPE_CHECKING:
    import graphviz

TEXT_ENDINGS = (".dot", ".gv")
PICTURE_ENDINGS = (".svg", ".png", ".pdf")


def model_graph(
    model: Callable[..., Any], guide: Callable[..., Any], x: Tensor
) -> "graphviz.Digraph":
    """Return the graph of a model, see `pyro.render_model`.

    Latent values are drawn from the guide, because improper priors cannot be sampled.
    """
    with (
        torch.no_grad(),
        torch.random.fork_rng(),
        pyro.settings.context(module_local_params=True),
    ):
        replayed = poutine.replay(model, trace=poutine.trace(guide).get_trace(x))
        y = poutine.trace(replayed).get_trace(x).nodes["y"]["value"]
        return pyro.render_model(
            replayed, model_args=(x, y), render_distributions=True, render_deterministic=True
        )


def write_graph(graph: "graphviz.Digraph", path: Path) -> None:
    """Write a graph as DOT text or as a picture, depending on the suffix of the file."""
    from graphviz import ExecutableNotFound

    ending = path.suffix.lower()
    if ending not in TEXT_ENDINGS + PICTURE_ENDINGS:
        endings = ", ".join(TEXT_ENDINGS + PICTURE_ENDINGS)
        raise ConfigError(f"a graph is a file that ends in {endings}. Got {str(path)!r}.")
    try:
        is_text = ending in TEXT_ENDINGS
        content = graph.source.encode() if is_text else graph.pipe(format=ending[1:])
    except ExecutableNotFound:
        raise ConfigError(
            f"{str(path)!r} needs the program 'dot' of Graphviz, which is not installed. A file "
            "that ends in .dot does not need it."
        ) from None
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
