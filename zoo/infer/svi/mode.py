"""Decide whether to compile a run, measured before its first step.

Compiled steps round differently from uncompiled ones. The decision is therefore made once, on
discarded steps, and stored in the configuration. A run that is resumed or repeated from its
configuration uses the stored decision.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyro
import torch
from torch import Tensor

from zoo.infer.recording import CANNOT, Mode
from zoo.infer.svi.capture import CapturedObjective, GradientStep
from zoo.infer.svi.objective import Objective

#: A run that takes fewer seconds without compilation is not compiled.
WORTH_SECONDS = 120.0
#: Compiled steps must take less than this fraction of the time of uncompiled steps.
WORTH_RATIO = 0.9
#: Number of timed steps.
TRIALS = 5


def choose_mode(objective: Objective, batch: Sequence[Tensor], num_steps: int) -> Mode:
    """Return ``inductor`` if it was measured to be faster, otherwise ``auto``.

    The objective does not change; ``num_steps`` are the steps of the run.
    """
    with _left_alone(objective), pyro.settings.context(module_local_params=True):
        plain = _seconds(GradientStep(objective, "off", num_steps), batch)
        if plain * num_steps < WORTH_SECONDS:
            return "auto"
        try:
            replayed = _seconds(CapturedObjective(objective).loss_and_gradients, batch)
            compiled = _compiled_seconds(objective, batch)
        except CANNOT:  # the run itself will warn
            return "auto"
    return "inductor" if compiled < WORTH_RATIO * min(plain, replayed) else "auto"


def _compiled_seconds(objective: Objective, batch: Sequence[Tensor]) -> float:
    return _seconds(CapturedObjective(objective, "inductor").loss_and_gradients, batch)


def _seconds(step: Callable[..., Tensor], batch: Sequence[Tensor]) -> float:
    """Return the median time of a step; the first step, which prepares, does not count."""
    times = []
    for _ in range(1 + TRIALS):
        _wait(batch)
        started = time.perf_counter()
        step(*batch)
        _wait(batch)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _wait(batch: Sequence[Tensor]) -> None:
    for device in {part.device for part in batch if part.device.type == "cuda"}:
        torch.cuda.synchronize(device)


@contextmanager
def _left_alone(objective: Objective) -> Iterator[None]:
    """Restore buffers, gradients, random state and training mode at the end."""
    buffers = {name: value.clone() for name, value in objective.named_buffers()}
    training = objective.training
    devices = [value.device for value in buffers.values() if value.device.type == "cuda"][:1]
    objective.train()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        objective.train(training)
        objective.zero_grad(set_to_none=True)
        for name, value in objective.named_buffers():
            value.copy_(buffers[name])
