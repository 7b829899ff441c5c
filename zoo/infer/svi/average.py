"""The average of the parameters over a part of the run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

#: Steps between two iterates that are averaged. Neighbours are nearly the same.
EVERY = 10


class RunningAverage:
    """The average of some iterates of the parameters.

    Polyak and Juditsky (1992), *Acceleration of Stochastic Approximation by Averaging*.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.count = 0
        self.values: list[Tensor] = []

    @torch.no_grad()
    def add(self) -> None:
        """Add the current parameters."""
        current = [p.detach() for p in self.parameters]
        self.count += 1
        if self.count == 1:
            self.values = [value.clone() for value in current]
        else:
            for value, new in zip(self.values, current, strict=True):
                value.lerp_(new, 1 / self.count)

    def reset(self) -> None:
        """Start again."""
        self.count, self.values = 0, []

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run needs."""
        return {str(index): value for index, value in enumerate(self.values)}

    def load_state(self, state: Mapping[str, Tensor], count: int) -> None:
        """Continue from what `state` returned."""
        self.count = count
        self.values = [
            state[str(index)].clone(memory_format=torch.preserve_format)
            for index in range(len(self.parameters) if count else 0)
        ]


@torch.no_grad()
def assign(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Set parameters to values, in place."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


@contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers and training mode of a module at the end."""
    kept = {name: value.detach().clone() for name, value in _tensors(module)}
    training = module.training
    try:
        yield
    finally:
        module.train(training)
        with torch.no_grad():
            for name, value in _tensors(module):
                value.copy_(kept[name])


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
