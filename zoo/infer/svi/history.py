"""Numbers of a run, one per step, in one block of memory."""

from torch import Tensor, zeros


class History:
    """A list of scalars that lie side by side.

    A tensor of its own for each would be allocated between the large blocks of a step, stay there,
    and keep those blocks from being joined again when they are free: a run would grow by about one
    block per step.

    Parameters
    ----------
    capacity
        How many numbers there will be at most.
    values
        The first of them.
    """

    def __init__(self, capacity: int, values: Tensor | None = None) -> None:
        self.capacity, self._length = capacity, 0
        self._block: Tensor | None = None
        for value in () if values is None else values:
            self.append(value)

    def append(self, value: Tensor) -> None:
        """Add a number, without waiting for it to be known."""
        if self._block is None:
            self._block = zeros(self.capacity, dtype=value.dtype, device=value.device)
        self._block[self._length].copy_(value.detach())
        self._length += 1

    def __len__(self) -> int:
        return self._length

    def last(self, number: int) -> Tensor:
        """Return the last numbers."""
        return self.all()[-number:]

    def all(self) -> Tensor:
        """Return all numbers so far."""
        return zeros(0) if self._block is None else self._block[: self._length]
