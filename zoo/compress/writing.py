"""Write a compressed network: a description in JSON, and packed weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from zoo.compress.graph import LayerGraph
from zoo.compress.loader import DESCRIPTION, WEIGHTS
from zoo.compress.packing import Packed, pack
from zoo.errors import CompressionError
from zoo.fit.store import atomic_path


def write_network(
    graph: LayerGraph, bits: Mapping[str, int], directory: Path, **metadata: Any
) -> dict[str, Packed]:
    """Write ``network.json`` and ``network.safetensors``.

    Parameters
    ----------
    graph
        The network; weights with bits must be on their grid already.
    bits
        Bits after the point, by node.
    directory
        Where to write; it is made if it is not there.
    **metadata
        Plain values that are kept with the description.

    Returns
    -------
    dict
        How each tensor was packed.
    """
    packed = {
        name: pack(value, bits.get(name.removesuffix(".weight")))
        for name, value in graph.tensors().items()
    }
    stored = {name: item.stored for name, item in packed.items()}
    for name, item in packed.items():
        stored |= {f"{name}.{key}": value for key, value in item.extra.items()}
    description = graph.description(**metadata)
    description["tensors"] = {name: item.entry for name, item in packed.items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompressionError(f"cannot make {str(directory)!r}: {error.strerror}.") from None
    with atomic_path(directory / WEIGHTS) as temporary:
        temporary.write_bytes(save(stored))
    with atomic_path(directory / DESCRIPTION) as temporary:
        text = json.dumps(description, separators=(",", ":"), allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return packed
