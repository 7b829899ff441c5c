"""`ConvergingCourse`: a run that ends by itself, within a budget.

Phases of a method, such as the warm-up of the KL, are fractions of the nominal length, which is
``num_steps`` of the recipe. Looks begin when they are over. `zoo.infer.svi.convergence` decides
what follows from a look.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from guides.base import Composite, Guide
from zoo.infer.svi.average import EVERY, RunningAverage, assign, left_alone
from zoo.infer.svi.convergence import FACTOR, MAX_ROUNDS, Convergence, Decision, Look, next_look
from zoo.infer.svi.course import FixedCourse, under
from zoo.infer.svi.ending import Ending, Reason
from zoo.infer.svi.monitor import Array, Outputs, change_in_sds
from zoo.infer.svi.schedule import pretrain_steps
from zoo.infer.svi.tolerance import OUTPUT_SDS, tolerance_in_nats
from zoo.registry import Recipe

if TYPE_CHECKING:
    from zoo.infer.svi.loop import SVI

#: Fraction of the budget, at its end, in which the learning rate falls to zero.
DECAY = 0.125
#: Fraction of the nominal length before the first look, if no phase is longer. Gains of the first
#: steps say nothing about those of later ones.
FIRST_PHASE = 0.25
#: Estimates of the final ELBO.
FINAL_VALUES = 64


class ConvergingCourse(FixedCourse):
    """Runs until convergence, or until the steps or seconds of its recipe are used up."""

    def __init__(self, recipe: Recipe, svi: "SVI") -> None:
        super().__init__(recipe)
        self.average: RunningAverage = RunningAverage(svi.parameters)
        self.last_phase = svi.life_cycle.last_phase
        self.monitor = svi.monitor()
        self.rule = Convergence(
            tolerance_in_nats(self.monitor.num_data),
            lowers_lr=recipe.schedule != "constant",
            both_ways=bool(svi.upper),  # of two levels, each maximises its own objective
        )
        self.first_step = end_of_phases(recipe, svi.objective.guide, self.last_phase)
        self.next_look = next_look(self.first_step)
        self.round = 0
        #: Step at which the run ends, once it has converged; zero before.
        self.ends_at = 0
        self.converged = self.averaged = self.finished = False
        #: Outputs at the last look of the round before, and at the last look.
        self.before: Outputs | None = None
        self.now: Outputs | None = None
        self.final: Array = np.empty(0)

    @property
    def longest(self) -> int:
        """The largest possible number of steps."""
        return self.recipe.max_steps

    @property
    def bar_total(self) -> int | None:
        """None: the number of steps is not known."""
        return None

    def progress(self, step: int) -> float:
        """Return the fraction of the phases that is over; the last one begins at convergence."""
        if self.ends_at and self.last_phase:
            return 1.0 - (self.ends_at - step) / self.recipe.num_steps
        return min(1.0 - self.last_phase, step / self.recipe.num_steps)

    def lr(self, step: int) -> float:
        """Return the learning rate of the round; it falls to zero where the budget ends."""
        lr = self.recipe.lr * FACTOR**self.round
        if self.rule.lowers_lr:
            lr *= min(1.0, (1.0 - step / self.recipe.max_steps) / DECAY)
        return lr

    def is_over(self, svi: "SVI") -> bool:
        """Tell whether the run has converged or its budget is used up."""
        step, seconds = svi.progress.step, self.recipe.max_seconds
        is_late = seconds is not None and svi.progress.seconds >= seconds
        return is_late or step >= (self.ends_at or self.recipe.max_steps)

    def after_step(self, svi: "SVI") -> None:
        """Average the iterates, and decide at a look."""
        step = svi.progress.step
        if self.ends_at:
            return
        if step % EVERY == 0 and step > self.first_step:
            self.average.add()
        if step == round((1 - DECAY) * self.recipe.max_steps):  # to be compared with the end
            with left_alone(svi.objective):
                if self.average.count > 1:
                    self._use_average(svi)
                self.before = self.monitor.outputs()
        length = round(self.last_phase * self.recipe.num_steps)
        if length and step >= self.recipe.max_steps - length:
            self.ends_at = self.recipe.max_steps
        elif step == self.next_look:
            if step <= (1 - DECAY) * self.recipe.max_steps and self.average.count > 1:
                self._follow(svi, self._look(svi), step + length)
            self.next_look = next_look(step, self.round)

    def _look(self, svi: "SVI") -> Decision:
        """Add a look at the average since the last one, and return what to do."""
        number = self.monitor.number(svi.progress.step - max(self.first_step, self._last_step))
        with left_alone(svi.objective):
            self._use_average(svi)
            values = self.monitor.elbos(number)
            decision = self.rule.add(Look(svi.progress.step, self.round, values))
            if self.round or decision != "continue" or not self.rule.lowers_lr:
                if not self.rule.lowers_lr:
                    self.before = self.now
                self.now = self.monitor.outputs()
        is_settled = not self.remaining_sds() > OUTPUT_SDS  # also if it is not known
        if decision == "stop" and not is_settled:
            return "lower" if self.rule.lowers_lr and self.round < MAX_ROUNDS else "continue"
        return decision

    @property
    def _last_step(self) -> int:
        return self.rule.looks[-1].step if self.rule.looks else 0

    def _follow(self, svi: "SVI", decision: Decision, end: int) -> None:
        if decision != "continue":
            self._settle(svi)
        self.average.reset()
        if decision == "stop":
            self.converged, self.ends_at = True, end
        elif decision == "lower":
            self.round += 1
            self.before = self.now

    def _use_average(self, svi: "SVI") -> None:
        """Set the parameters to the average, and let fitted priors follow."""
        assign(svi.parameters, self.average.values)
        model, guide = svi.objective.model, svi.objective.guide
        svi.life_cycle.after_update(model, guide, self.progress(svi.progress.step))

    def _settle(self, svi: "SVI") -> None:
        """Replace the last iterate by the average, unless its ELBO is worse."""
        self.averaged = False
        if not svi.life_cycle.averages or self.average.count < 2:
            return
        iterate = self.monitor.elbos(FINAL_VALUES)
        with left_alone(svi.objective):
            self._use_average(svi)
            average = self.monitor.elbos(FINAL_VALUES)
        if average.mean() >= iterate.mean():
            self._use_average(svi)
            self.averaged = True

    def finish(self, svi: "SVI") -> None:
        """Set the parameters to the result if the budget ran out, and estimate the final ELBO."""
        if self.finished:
            return
        if not self.ends_at and not svi.progress.stopped:
            self._settle(svi)
            self.now = self.monitor.outputs()
        self.final, self.finished = self.monitor.elbos(FINAL_VALUES), True

    def remaining_sds(self, sd: Array | None = None) -> float:
        """Return the change of outputs that is still possible, in posterior sds."""
        if self.now is None or self.before is None:
            return math.nan
        change = change_in_sds(self.now, self.before, sd)
        # The bias is proportional to the learning rate, and so is the change of the outputs.
        is_bias = self.rule.lowers_lr and not (self.finished and not self.converged)
        return change * FACTOR / (1 - FACTOR) if is_bias else change

    def _remaining(self) -> float:
        """Return the gain that is left; without the bias of the learning rate if not known."""
        if not self.rule.looks or math.isfinite(self.rule.remaining()):
            return self.rule.remaining()
        return self.rule.drift()

    def ending(self, svi: "SVI") -> Ending:
        """Return how the run ended; called after `LifeCycle.after_training`."""
        reason: Reason = "early stopping" if svi.progress.stopped else "budget"
        if self.converged and not svi.progress.stopped:
            reason = "converged"
        sds = self.remaining_sds()
        if math.isnan(sds) and self.before is not None:  # the sds may be known only now
            found = self.monitor.outputs()
            sds = self.remaining_sds(None if found is None else found.sd)
        looks = self.rule.looks
        return Ending(
            reason,
            svi.progress.step,
            self.rule.tolerance,
            remaining=self._remaining(),
            remaining_error=self.rule.error(),
            sds_tolerance=OUTPUT_SDS,
            sds=sds,
            averaged=self.averaged,
            loss=-float(self.final.mean()),
            loss_error=float(self.final.std(ddof=1)) / math.sqrt(len(self.final)),
            rounds=self.round + 1,
            curves={
                "look_step": np.array([look.step for look in looks]),
                "look_lr": np.array([self.recipe.lr * FACTOR**look.round for look in looks]),
                "look_elbo": np.array([look.values.mean() for look in looks]),
                "look_elbo_error": np.array(
                    [look.values.std(ddof=1) / math.sqrt(len(look.values)) for look in looks]
                ),
            },
        )

    def summary(self) -> str:
        """Return the round and what is missing, for the progress bar."""
        missing = self._remaining()
        shown = f"{missing:.2g}" if math.isfinite(missing) else "?"
        return (
            f"round {self.round + 1}, remaining {shown} of {self.rule.tolerance:.2g} nats, "
            f"at most {self.recipe.max_steps} steps"
        )

    # ------------------------------------------------------------------ state

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the tensors and numbers that a resumed run needs."""
        tensors, numbers = super().state()
        looks = self.rule.looks
        if looks:
            width = max(len(look.values) for look in looks)
            values = np.full((len(looks), width), np.nan)
            for row, look in zip(values, looks, strict=True):
                row[: len(look.values)] = look.values
            tensors["looks"] = torch.from_numpy(values)
            tensors["look_steps"] = torch.tensor([(look.step, look.round) for look in looks])
        for name in ("before", "now"):
            outputs: Outputs | None = getattr(self, name)
            if outputs is not None:
                tensors[name] = torch.from_numpy(np.stack([outputs.mean, outputs.sd]))
        if len(self.final):
            tensors["final"] = torch.from_numpy(self.final)
        kept = ("round", "next_look", "ends_at", "converged", "averaged", "finished")
        numbers |= {name: float(getattr(self, name)) for name in kept}
        return tensors, numbers

    def load_state(
        self, svi: "SVI", tensors: dict[str, Tensor], numbers: Mapping[str, float]
    ) -> None:
        """Continue from what `state` returned."""
        tensors = dict(tensors)
        self.average.load_state(under("average.", tensors), int(numbers["count"]))
        for name in ("round", "next_look", "ends_at"):
            setattr(self, name, int(numbers[name]))
        for name in ("converged", "averaged", "finished"):
            setattr(self, name, bool(numbers[name]))
        if "looks" in tensors:
            values = tensors["looks"].cpu().numpy()
            steps = tensors["look_steps"].tolist()
            self.rule.looks = [
                Look(step, number, row[np.isfinite(row)])
                for (step, number), row in zip(steps, values, strict=True)
            ]
        for name in ("before", "now"):
            if name in tensors:
                mean, sd = tensors[name].cpu().numpy()
                setattr(self, name, Outputs(mean, sd))
        if "final" in tensors:
            self.final = tensors["final"].cpu().numpy()


def end_of_phases(recipe: Recipe, guide: Guide, last_phase: float) -> int:
    """Return the step at which all schedules of a method have reached their end."""
    warm = pretrain_steps(recipe) + math.ceil(recipe.kl_warmup * recipe.num_steps)
    warm = max(warm, math.ceil(FIRST_PHASE * recipe.num_steps))
    follows = any(
        type(part).advance not in (Guide.advance, Composite.advance)
        for part in guide.modules()
        if isinstance(part, Guide)
    )
    return max(warm, round((1.0 - last_phase) * recipe.num_steps)) if follows else warm
