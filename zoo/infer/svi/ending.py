"""`Ending`: why training stopped, and how far it was from convergence."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: Converged: by the rule. Budget: the steps or seconds ran out before. Fixed: after a number of
#: steps that was given. Early stopping: by held-out rows. Computed: there are no steps.
Reason = Literal["converged", "budget", "fixed", "early stopping", "computed"]
REASONS: tuple[Reason, ...] = ("converged", "budget", "fixed", "early stopping", "computed")

#: Numbers that have one element per look at a run.
CURVES = ("look_step", "look_lr", "look_elbo", "look_elbo_error")


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    Attributes
    ----------
    reason
        Why training stopped.
    steps
        Number of steps.
    tolerance
        Tolerance for the remaining gain of the ELBO, in nats.
    remaining, remaining_error
        Upper estimate of the gain of the ELBO by more training, in nats, and the standard error of
        the difference that it is extrapolated from; NaN if not known.
    sds_tolerance, sds
        Tolerance for changes of outputs and their remaining change, in posterior sds; NaN if not
        known.
    averaged
        Whether the result is an average of iterates.
    loss, loss_error
        The objective at the result, and its standard error.
    rounds
        Number of learning rates.
    curves
        What was seen at each look, by the names in `CURVES`.
    """

    reason: Reason
    steps: int
    tolerance: float
    remaining: float = math.nan
    remaining_error: float = math.nan
    sds_tolerance: float = math.nan
    sds: float = math.nan
    averaged: bool = False
    loss: float = math.nan
    loss_error: float = math.nan
    rounds: int = 1
    curves: Mapping[str, NDArray[Any]] | None = None

    def numbers(self) -> dict[str, float]:
        """Return everything but the curves as numbers, for the header of a file."""
        values = {k: v for k, v in asdict(self).items() if k != "curves"}
        return {
            f"ending.{k}": float(REASONS.index(v) if k == "reason" else v)
            for k, v in values.items()
        }

    @classmethod
    def from_numbers(
        cls, numbers: Mapping[str, float], curves: Mapping[str, NDArray[Any]] | None = None
    ) -> "Ending | None":
        """Read what `numbers` returned; None if there is nothing."""
        found = {k.removeprefix("ending."): v for k, v in numbers.items() if "ending." in k}
        if "reason" not in found:
            return None
        known: dict[str, Any] = dict(found)
        known["reason"] = REASONS[int(found["reason"])]
        known |= {k: int(found[k]) for k in ("steps", "rounds")}
        known["averaged"] = bool(found["averaged"])
        return cls(**known, curves=curves)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the group ``optimization`` of a tree."""
        values = {k: v for k, v in asdict(self).items() if k != "curves"}
        values["averaged"] = int(self.averaged)
        return values

    def variables(self) -> dict[str, NDArray[Any]]:
        """Return the curves; empty for a run without looks."""
        return {k: np.asarray(v) for k, v in (self.curves or {}).items()}
