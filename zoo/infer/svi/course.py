"""The course of a run: its schedules, and when it ends.

`FixedCourse` takes a given number of steps; `zoo.infer.svi.converging` ends by itself.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from zoo.infer.svi.average import EVERY, RunningAverage, assign, left_alone
from zoo.infer.svi.ending import Ending, Reason
from zoo.infer.svi.monitor import change_in_sds
from zoo.infer.svi.schedule import lr_factor
from zoo.infer.svi.tolerance import OUTPUT_SDS, tolerance_in_nats
from zoo.registry import Recipe

if TYPE_CHECKING:
    from zoo.infer.svi.loop import SVI

#: Part of a fixed run whose average is compared with its end.
COMPARED = (0.75, 0.875)


class FixedCourse:
    """A given number of steps, with schedules that are functions of the step."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.average: RunningAverage | None = None

    @property
    def longest(self) -> int:
        """The largest possible number of steps."""
        return self.recipe.num_steps

    @property
    def bar_total(self) -> int | None:
        """Number of steps for a progress bar; None if it is not known."""
        return self.recipe.num_steps

    def progress(self, step: int) -> float:
        """Return the fraction of the phases that is over after so many steps."""
        return step / self.recipe.num_steps

    def lr(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.recipe.lr * lr_factor(self.recipe, step)

    def is_over(self, svi: "SVI") -> bool:
        """Tell whether no step is left."""
        return svi.progress.step >= self.recipe.num_steps

    def after_step(self, svi: "SVI") -> None:
        """Follow a step: average a late part of the run, to compare its outputs with the end."""
        done, length = svi.progress.step, self.recipe.num_steps
        if done % EVERY or not COMPARED[0] * length <= done < COMPARED[1] * length:
            return
        if self.average is None:
            self.average = RunningAverage(svi.parameters)
        self.average.add()

    def finish(self, svi: "SVI") -> None:
        """Set the parameters to the result."""

    def ending(self, svi: "SVI") -> Ending:
        """Return how the run ended; called after `LifeCycle.after_training`."""
        monitor = svi.monitor()
        reason: Reason = "early stopping" if svi.progress.stopped else "fixed"
        sds = math.nan
        now = monitor.outputs()
        if self.average is not None and self.average.count and now is not None:
            with left_alone(svi.objective):
                assign(svi.parameters, self.average.values)
                before = monitor.outputs()
            if before is not None:
                sds = change_in_sds(now, before)
        return Ending(
            reason,
            svi.progress.step,
            tolerance_in_nats(monitor.num_data),
            sds_tolerance=OUTPUT_SDS,
            sds=sds,
        )

    def summary(self) -> str:
        """Return what a progress bar shows besides the ELBO."""
        return ""

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the tensors and numbers that a resumed run needs."""
        if self.average is None:
            return {}, {}
        tensors = {f"average.{k}": v for k, v in self.average.state().items()}
        return tensors, {"count": self.average.count}

    def load_state(
        self, svi: "SVI", tensors: dict[str, Tensor], numbers: Mapping[str, float]
    ) -> None:
        """Continue from what `state` returned; runs of earlier versions have no such state."""
        if numbers.get("count"):
            self.average = RunningAverage(svi.parameters)
            self.average.load_state(under("average.", tensors), int(numbers["count"]))


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
