"""Recording, compiling and hashing of densities."""

import hashlib
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from zoo.infer.nuts.chain import Compiled, ValueAndGradient
from zoo.infer.nuts.density import LogDensity
from zoo.infer.recording import CANNOT, Backend, cause_of


def compile_density(
    density: LogDensity, backend: Backend = "inductor"
) -> Compiled | ValueAndGradient:
    """Record and compile a density.

    If that fails, there is one warning, and the density is replayed, or run by Pyro as a plain
    function, which cannot be sent to another process.
    """
    try:
        graph = density.capture()
    except CANNOT as error:
        warnings.warn(
            "the density cannot be captured; it is run by Pyro, slowly and in this process: "
            + cause_of(error),
            stacklevel=2,
        )
        return density.eager
    compiled = Compiled(graph, density.size, backend, fingerprint(density, graph))
    try:
        compiled.function()
    except CANNOT as error:
        warnings.warn(
            "the density cannot be compiled and is replayed step by step: " + cause_of(error),
            stacklevel=2,
        )
        compiled = replace(compiled, backend="replay")
        compiled.function()
    return compiled


def fingerprint(density: LogDensity, graph: torch.fx.GraphModule) -> str:
    """Return a hash of sites, operations, hyper-parameters and data, not of the source code."""
    digest = hashlib.sha256(repr(density.sites).encode())
    digest.update(graph.code.encode())
    constants = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    for name in sorted(set(map(str, constants))):
        value = getattr(graph, name)
        if isinstance(value, Tensor):
            digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
