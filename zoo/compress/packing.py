"""Weights in as few bytes as they need; `zoo.compress.loader.unpack` is the way back.

A tensor is packed in every way that fits, and the smallest is taken: float32 as it is; whole
numbers on a grid, in as many bits as their range needs; numbers of code words if there are few
different values. With many zeros a bitmap says where the others are, and only those are coded. Last
the bytes may be deflated.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Most different values that get a code book.
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


def pack(value: Tensor, bits: int | None = None) -> Packed:
    """Pack a tensor in the smallest way.

    Parameters
    ----------
    value
        Booleans, or numbers.
    bits
        Numbers are multiples of 2^-bits; None if they are on no grid.
    """
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
            yield _on_grid(value, coded, front, 2.0**-bits, sparse)
        if sparse:
            patterns = coded.float().view(torch.int32).to(torch.int64)
            entry = _entry(value, "raw", bits=32, sparse=True)
            yield Packed(entry, torch.cat([front, _pack_codes(patterns, 32)]))
        words = coded.float().unique()
        if 0 < len(words) <= min(MAX_WORDS, len(coded) // 4):
            yield _with_codebook(value, coded.float(), front, words, sparse)


def _on_grid(value: Tensor, coded: Tensor, front: Tensor, step: float, sparse: bool) -> Packed:
    numbers = (coded / step).round().to(torch.int64)
    low = int(numbers.min()) if len(numbers) else 0
    width = max(1, int((numbers - low).max()).bit_length()) if len(numbers) else 1
    entry = _entry(value, "grid", bits=width, low=low, step=step, sparse=sparse)
    return Packed(entry, torch.cat([front, _pack_codes(numbers - low, width)]))


def _with_codebook(
    value: Tensor, coded: Tensor, front: Tensor, words: Tensor, sparse: bool
) -> Packed:
    width = max(1, math.ceil(math.log2(len(words))))
    codes = torch.searchsorted(words, coded)
    entry = _entry(value, "codebook", bits=width, sparse=sparse)
    return Packed(entry, torch.cat([front, _pack_codes(codes, width)]), {"codebook": words})


def _deflated(packed: Packed) -> Packed:
    data = bytearray(zlib.compress(packed.stored.numpy().tobytes(), 9))
    stored = torch.frombuffer(data, dtype=torch.uint8).clone()
    return Packed(packed.entry | {"deflate": True}, stored, packed.extra)


def _pack_codes(codes: Tensor, width: int) -> Tensor:
    places = torch.arange(width)
    return _pack_bits(((codes[:, None] >> places) & 1).flatten().bool())


def _pack_bits(bits: Tensor) -> Tensor:
    """Put eight bits into each byte, the first one lowest."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).reshape(-1, 8)
    places = torch.arange(8, dtype=torch.uint8)
    return (padded << places).sum(1).to(torch.uint8)
