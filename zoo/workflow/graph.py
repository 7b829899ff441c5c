"""A model as a graph of sites and plates, in the DOT language of Graphviz."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.inspect import get_model_relations
from torch import Tensor

from zoo.errors import ConfigError
from zoo.fit.store import atomic_path

TEXT_ENDINGS = (".dot", ".gv")
PICTURE_ENDINGS = (".svg", ".png", ".pdf")


def write_graph(dot: str, path: Path) -> None:
    """Write DOT text to a file, or draw it if the file's ending is that of a picture.

    Parameters
    ----------
    dot
        The graph.
    path
        Files that end in ``.dot`` or ``.gv`` hold the text; pictures need the program ``dot`` of
        Graphviz.
    """
    ending = path.suffix.lower()
    content = dot.encode()
    if ending in PICTURE_ENDINGS:
        content = _drawn(content, path)
    elif ending not in TEXT_ENDINGS:
        endings = ", ".join(TEXT_ENDINGS + PICTURE_ENDINGS)
        raise ConfigError(f"a graph is a file that ends in {endings}. Got {str(path)!r}.")
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _drawn(dot: bytes, path: Path) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise ConfigError(
            f"{str(path)!r} needs the program 'dot' of Graphviz, which is not installed. A file "
            "that ends in .dot does not need it."
        )
    command = [program, f"-T{path.suffix[1:].lower()}"]
    return subprocess.run(command, input=dot, check=True, capture_output=True).stdout


def relations(model: Callable[..., Any], guide: Callable[..., Any], x: Tensor) -> dict[str, Any]:
    """Return which sites of a model there are, in which plates, and on which others they depend.

    Latent values are drawn from the guide, because improper priors cannot be sampled.
    """
    with (
        torch.no_grad(),
        torch.random.fork_rng(),
        pyro.settings.context(module_local_params=True),
    ):
        replayed = poutine.replay(model, trace=poutine.trace(guide).get_trace(x))
        y = poutine.trace(replayed).get_trace(x).nodes["y"]["value"]
        found: dict[str, Any] = get_model_relations(replayed, (x, y), include_deterministic=True)
    return found


def to_dot(found: Mapping[str, Any]) -> str:
    """Return the DOT text of what `relations` found.

    Sites are ellipses with the name of their distribution: observed ones are grey, deterministic
    ones are dashed. Plates are boxes around their sites.
    """
    families = found["sample_dist"]
    # The largest plate is the outermost box.
    plates = sorted(found["plate_sample"].items(), key=lambda plate: -len(plate[1]))
    nodes = [
        ([plate for plate, inside in plates if site in inside], _node(site, found))
        for site in families
    ]
    edges = [
        f"{_quoted(parent)} -> {_quoted(site)};"
        for site, parents in found["sample_sample"].items()
        for parent in sorted(parents, key=list(families).index)
    ]
    lines = ["graph [labeljust=r, labelloc=b];", *_boxes(nodes), *edges]
    return "\n".join(["digraph model {", *_indented(lines), "}", ""])


def _boxes(nodes: Sequence[tuple[list[str], str]], outer: str = "") -> list[str]:
    """Return the lines of nodes, each in the boxes of its plates."""
    lines = [node for plates, node in nodes if not plates]
    for plate in dict.fromkeys(plates[0] for plates, _ in nodes if plates):
        inside = [(plates[1:], node) for plates, node in nodes if plates[:1] == [plate]]
        name = f"{outer}/{plate}"
        body = [f"label={_quoted(plate)};", *_boxes(inside, name)]
        lines += [f"subgraph {_quoted(f'cluster{name}')} {{", *_indented(body), "}"]
    return lines


def _node(site: str, found: Mapping[str, Any]) -> str:
    family = found["sample_dist"][site]
    label = json.dumps(f"{site}\n{family}", ensure_ascii=False)
    style = ""
    if family == "Deterministic":
        style = ", style=dashed"
    elif site in found["observed"]:
        style = ", style=filled, fillcolor=lightgrey"
    return f"{_quoted(site)} [label={label}{style}];"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
