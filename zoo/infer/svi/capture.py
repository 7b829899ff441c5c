"""Capture: one step of inference as a flat graph, replayed without Pyro.

Model, guide, ELBO and autograd are recorded once (`zoo.infer.recording`). Everything that changes
during training must be an input: parameters, buffers (including the weight of the KL) and the
batch; a Python number would be a constant. Each new shape of the batch, such as a smaller last one,
is captured separately.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from zoo.infer.recording import CANNOT, Backend, Mode, cause_of, record
from zoo.infer.svi.objective import Objective


class CapturedObjective:
    """Loss and gradients of an objective from recorded graphs, one for each shape of the batch."""

    def __init__(self, objective: Objective, backend: Backend = "replay") -> None:
        self.objective = objective
        self.backend = backend
        self._graphs: dict[Any, Callable[..., list[Tensor]]] = {}
        named = dict(objective.named_parameters())
        self._trained = {name: p for name, p in named.items() if p.requires_grad}
        self._fixed = {name: p for name, p in named.items() if not p.requires_grad}

    def loss_and_gradients(self, *batch: Tensor) -> Tensor:
        """Return the loss, and leave its gradients in the parameters."""
        shapes = tuple((part.shape, part.dtype, part.device) for part in batch)
        key = (shapes, self.objective.training)
        if key not in self._graphs:
            self.objective.check_once(*batch)
            self._graphs[key] = record(self._step, *self._inputs(), *batch, backend=self.backend)
        with torch.no_grad():
            loss, *gradients = self._graphs[key](*self._inputs(), *batch)
        for parameter, gradient in zip(self._trained.values(), gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _state(self) -> dict[str, Tensor]:
        return self._fixed | dict(self.objective.named_buffers())

    def _inputs(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self._trained.values()), list(self._state().values())

    def _step(self, trained: list[Tensor], state: list[Tensor], *batch: Tensor) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in trained]
        values = dict(zip(self._trained, leaves, strict=True))
        values |= dict(zip(self._state(), state, strict=True))
        with torch.enable_grad():
            loss = functional_call(self.objective, values, batch)
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return [loss.detach(), *gradients]


#: Steps that ``auto`` times before it decides, and smallest number of steps for a capture.
TIMED_STEPS = 20
WORTH_STEPS = 200


class GradientStep:
    """Computes loss and gradients, from a captured graph where that is faster.

    The modes ``replay`` and ``inductor`` capture from the first step, ``off`` never. ``auto`` times
    a few steps without capture and with replay, which are bitwise equal, and keeps the faster,
    unless few steps remain. Whether to compile is decided before, see `zoo.infer.svi.mode`.
    """

    def __init__(self, objective: Objective, mode: Mode, num_steps: int) -> None:
        self.objective = objective
        self.captured: CapturedObjective | None = None
        self._parameters = [p for p in objective.parameters() if p.requires_grad]
        self._undecided = mode == "auto" and num_steps >= WORTH_STEPS
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        if mode in ("replay", "inductor"):
            self.captured = CapturedObjective(objective, mode)

    def __call__(self, *batch: Tensor) -> Tensor:
        """Return the loss of a batch, and leave its gradients in the parameters."""
        started = time.perf_counter()
        loss = self._loss(*batch)
        if self._undecided:
            self._seconds[self.captured is not None].append(time.perf_counter() - started)
            self._decide()
        return loss

    def _loss(self, *batch: Tensor) -> Tensor:
        if self.captured is not None:
            try:
                return self.captured.loss_and_gradients(*batch)
            except CANNOT as error:
                self.captured, self._undecided = None, False
                warnings.warn(
                    f"the step cannot be captured and runs without capture: {cause_of(error)}",
                    stacklevel=4,
                )
        for parameter in self._parameters:
            parameter.grad = None
        loss: Tensor = self.objective(*batch)
        loss.backward()
        return loss.detach()

    def _decide(self) -> None:
        plain, captured = self._seconds[False], self._seconds[True]
        if len(plain) == TIMED_STEPS and self.captured is None:
            self.captured = CapturedObjective(self.objective)
        elif len(captured) == TIMED_STEPS:
            self._undecided = False
            if statistics.median(captured) >= statistics.median(plain):
                self.captured = None
