"""Write a compressed network: a description in JSON, and weights in as few bytes as they need.

A tensor is packed in every way that fits, and the smallest is taken: float32 as it is; integers on
a grid, in as many bits as their range needs; numbers of code words if there are few different
values. With many zeros a bitmap marks the other values, and only those are coded. Finally the bytes
may be deflated. `zoo.compress.loader.unpack` restores a tensor.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from zoo.compress.graph import LayerGraph
from zoo.compress.loader import DESCRIPTION, WEIGHTS
from zoo.errors import CompressionError
from zoo.fit.store import atomic_path

#: Largest number of different values that get a code book.
MAX_WORDS = 256


@dataclass(frozen=True)
class Packed:
    """A packed tensor: how it is packed, its bytes, and a code book if it has one."""

    entry: dict[str, Any]
    stored: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the numbers, code book included."""
        return self.stored.nbytes + sum(value.nbytes for value in self.extra.values())


def write_network(
    graph: LayerGraph, bits: Mapping[str, int], directory: Path, **metadata: Any
) -> dict[str, Packed]:
    """Write ``network.json`` and ``network.safetensors``, and return how each tensor was packed.

    Parameters
    ----------
    graph
        The network; weights with bits must be rounded already.
    bits
        Bits after the binary point, by node.
    directory
        Where to write; it is created if necessary.
    **metadata
        Plain values that are kept with the description.
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


def pack(value: Tensor, bits: int | None = None) -> Packed:
    """Pack booleans or numbers in the smallest way; with bits, numbers are multiples of 2^-bits."""
    value = value.detach().cpu()
    if value.dtype == torch.bool:
        candidates = [Packed(_entry(value, "bitmap"), _pack_bits(value.flatten()))]
    else:
        plain = value.float().contiguous()
        candidates = [Packed(_entry(value, "float32"), plain)]
        if value.dim() > 1:
            candidates += [coded for c in _codings(value, bits) for coded in (c, _deflated(c))]
    return min(candidates, key=lambda packed: packed.num_bytes)


def _entry(value: Tensor, coding: str, **values: Any) -> dict[str, Any]:
    return {"shape": list(value.shape), "coding": coding, **values}


def _codings(value: Tensor, bits: int | None) -> Iterator[Packed]:
    flat = value.flatten().double()
    present = flat != 0
    for sparse in (False, True):
        coded = flat[present] if sparse else flat
        front = _pack_bits(present) if sparse else torch.zeros(0, dtype=torch.uint8)
        if bits is not None:
            step = 2.0**-bits
            numbers = (coded / step).round().to(torch.int64)
            low = int(numbers.min()) if len(numbers) else 0
            width = _width(int(numbers.max()) - low if len(numbers) else 0)
            entry = _entry(value, "grid", bits=width, low=low, step=step, sparse=sparse)
            yield Packed(entry, _pack_codes(front, numbers - low, width))
        if sparse:
            patterns = coded.float().view(torch.int32).to(torch.int64)
            entry = _entry(value, "raw", bits=32, sparse=True)
            yield Packed(entry, _pack_codes(front, patterns, 32))
        words = coded.float().unique()
        if 0 < len(words) <= min(MAX_WORDS, len(coded) // 4):
            width = _width(len(words) - 1)
            entry = _entry(value, "codebook", bits=width, sparse=sparse)
            codes = torch.searchsorted(words, coded.float())
            yield Packed(entry, _pack_codes(front, codes, width), {"codebook": words})


def _width(largest: int) -> int:
    """Return the bits of the largest of some codes, at least one."""
    return max(1, largest.bit_length())


def _deflated(packed: Packed) -> Packed:
    data = bytearray(zlib.compress(packed.stored.numpy().tobytes(), 9))
    stored = torch.frombuffer(data, dtype=torch.uint8).clone()
    return Packed(packed.entry | {"deflate": True}, stored, packed.extra)


def _pack_codes(front: Tensor, codes: Tensor, width: int) -> Tensor:
    bits = (codes[:, None] >> torch.arange(width)) & 1
    return torch.cat([front, _pack_bits(bits.flatten().bool())])


def _pack_bits(bits: Tensor) -> Tensor:
    """Put eight bits into each byte, the first one lowest."""
    return torch.from_numpy(np.packbits(bits.numpy(), bitorder="little"))
