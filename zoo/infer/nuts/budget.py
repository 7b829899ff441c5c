"""A budget of wall-clock seconds, and what is said when it is spent."""

import math
import time
from concurrent.futures import Executor
from dataclasses import dataclass, field

from zoo.errors import TruthError
from zoo.infer.tasks.executor import available_cores


class BudgetError(TruthError):
    """Sampling did not get far enough within its budget."""


@dataclass(frozen=True)
class Budget:
    """Seconds that may pass from now on."""

    seconds: float = math.inf
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds that have passed."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left, zero if none are."""
        return max(0.0, self.seconds - self.spent)

    def require(self, phase: str) -> None:
        """Raise a `BudgetError` if nothing is left after a phase."""
        if not self.left:
            raise BudgetError(
                f"out of budget: {phase} took {self.spent:.0f} of {self.seconds:.0f} s, and no "
                "chain was run. Raise max_seconds, or make the problem smaller."
            )


def num_workers(executor: Executor | str | None, num_tasks: int) -> int:
    """Return how many tasks run at a time; one if that is not known."""
    if executor is None:
        executor = "processes"
    kind, _, number = executor.partition(":") if isinstance(executor, str) else ("", "", "")
    if kind != "processes":
        return 1
    return min(int(number) if number else available_cores(), num_tasks)
