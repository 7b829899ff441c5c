"""Scalars of a run, one per step, in one block of memory."""

from torch import Tensor, zeros


class History:
    """A list of scalars in contiguous memory.

    Separate tensors would be allocated between the large blocks of a step and keep these blocks
    from being merged after they are freed. The memory of a run would grow by about one block per
    step.
    """

    def __init__(self, capacity: int, values: Tensor | None = None) -> None:
        self.capacity, self._length = capacity, 0
        self._block: Tensor | None = None
        for value in () if values is None else values:
            self.append(value)

    def append(self, value: Tensor) -> None:
        """Append a scalar without synchronising with the device."""
        if self._block is None:
            self._block = zeros(self.capacity, dtype=value.dtype, device=value.device)
        self._block[self._length].copy_(value.detach())
        self._length += 1

    def __len__(self) -> int:
        return self._length

    def last(self, number: int) -> Tensor:
        """Return the last scalars."""
        return self.all()[-number:]

    def all(self) -> Tensor:
        """Return all scalars so far."""
        return zeros(0) if self._block is None else self._block[: self._length]
