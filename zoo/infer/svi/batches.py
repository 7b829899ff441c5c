"""Mini-batches on the device, copied while it computes."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.infer.svi.schedule import batch_rows


class NoArguments:
    """The batches of a model that holds its data: no argument at any step."""

    def __getitem__(self, step: int) -> tuple[()]:
        return ()


class Batches:
    """The mini-batch of every step, which depends only on the seed and the step.

    The last batch of an epoch may be smaller. Rows on the device, by default that of the rows, are
    selected there, with one permutation copied per epoch. Rows on the host are gathered into
    page-locked memory and copied while the device computes the previous batch.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        self.x, self.y = x, y
        self.batch_size, self.seed = batch_size, seed
        self.device = x.device if device is None else device
        self._next: tuple[int, tuple[Tensor, Tensor]] | None = None
        self._stream = torch.cuda.Stream(self.device) if self._travels else None

    @property
    def _travels(self) -> bool:
        return self.device.type == "cuda" and self.x.device.type == "cpu"

    def rows(self, step: int) -> Tensor:
        """Return the row indices of the batch of a step, on the device of the rows."""
        return batch_rows(len(self.x), self.batch_size, step, self.seed, self.x.device)

    def full(self) -> Iterator[Tensor]:
        """Yield the inputs of full batches indefinitely; smaller batches are skipped."""
        for step in itertools.count():
            x, _ = self[step]
            if len(x) == min(self.batch_size, len(self.x)):
                yield x

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if self._stream is None:
            rows = self.rows(step)
            return self.x[rows], self.y[rows]
        if self._next is None or self._next[0] != step:
            self._next = (step, self._send(step))
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        batch = self._next[1]
        for part in batch:  # memory filled by the other stream is now used by this one
            part.record_stream(torch.cuda.current_stream(self.device))
        self._next = (step + 1, self._send(step + 1))
        return batch

    def _send(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.rows(step)
        pinned = self.x[rows].pin_memory(), self.y[rows].pin_memory()
        with torch.cuda.stream(self._stream):
            x, y = (part.to(self.device, non_blocking=True) for part in pinned)
            return x, y
