"""Stochastic variational inference: the training loop."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyro
import torch
from torch import Tensor
from tqdm import tqdm

from guides.base import Guide
from zoo.errors import ZooError
from zoo.infer.recording import Mode
from zoo.infer.rng import seeded
from zoo.infer.svi.batches import Batches, NoArguments
from zoo.infer.svi.capture import GradientStep
from zoo.infer.svi.converging import ConvergingCourse
from zoo.infer.svi.course import FixedCourse, under
from zoo.infer.svi.ending import Ending
from zoo.infer.svi.history import History
from zoo.infer.svi.interrupt import StopSignal
from zoo.infer.svi.memory import kept_memory
from zoo.infer.svi.mode import choose_mode
from zoo.infer.svi.monitor import Monitor
from zoo.infer.svi.objective import Objective, estimate_elbo, total_divergence
from zoo.infer.svi.optimizer import FusedAdam
from zoo.infer.svi.schedule import child_seed, kl_weight, pretrain_steps
from zoo.network.bnn import BNN
from zoo.network.lifecycle import LifeCycle
from zoo.registry import Recipe

#: Streams of random numbers derived from the seed of a run. Those of epochs start at zero.
NOISE_STREAM = 1_000_000_007
LEVEL_STREAM = 1_000_000_021
#: Seconds between two updates of the progress bar; only then is a value read from the device.
REFRESH_SECONDS = 0.5
#: Steps between two evaluations of the norm of the gradient.
GRADIENT_EVERY = 10
#: Steps between two checks that the loss is finite.
FINITE_EVERY = 50


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal, after a checkpoint was written."""


class DivergedError(ZooError):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when the ELBO on held-out rows ``x, y`` has not improved for ``patience`` evaluations.

    There is one evaluation every ``every`` steps.
    """

    x: Tensor
    y: Tensor
    patience: int = 10
    every: int = 100


@dataclass
class Progress:
    """State of training besides the parameters."""

    losses: History
    gradient_norms: History
    step: int = 0
    best_loss: float = math.inf
    evaluations_since_best: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    stopped: bool = False
    seconds: float = 0.0


#: Numbers in the state of a run, and their types.
_NUMBERS = {f.name: type(f.default) for f in fields(Progress) if isinstance(f.default, int | float)}


class SVI:
    """Fits a guide to a model by gradient ascent on the ELBO.

    The state of a run is its parameters, optimizer, random number generator and `Progress`;
    everything else is a function of the step. `state` and `load_state` convert it to and from a
    mapping of tensors. A run that was stopped and resumed gives bitwise the same result.

    Parameters
    ----------
    model, guide, x, y
        Model, guide, and all training rows, on the device of the guide or on the host; None for a
        model that holds its data.
    recipe
        Steps or budget, learning rate, schedule, warm-up, clipping.
    seed
        Seed of batches and noise.
    num_particles, vectorize_particles
        Posterior draws per step, and whether they are one batched call.
    local
        Whether layers sample their outputs instead of their weights.
    mode
        Whether steps are captured, see `zoo.infer.svi.capture`.
    early_stopping
        Held-out rows and patience, or None.
    life_cycle
        Hooks around the steps; by default those of the model's method, if it has one.
    """

    def __init__(
        self,
        model: Any,
        guide: Guide,
        x: Tensor | None = None,
        y: Tensor | None = None,
        *,
        recipe: Recipe,
        seed: int,
        num_particles: int = 1,
        vectorize_particles: bool = False,
        local: bool = False,
        mode: Mode = "off",
        early_stopping: EarlyStopping | None = None,
        life_cycle: LifeCycle | None = None,
    ) -> None:
        self.device = guide.some_tensor.device
        self.life_cycle: LifeCycle = life_cycle or getattr(model, "method", None) or LifeCycle()
        self.objective = Objective(
            model, guide, num_particles, vectorize_particles=vectorize_particles, local=local
        ).to(self.device)
        self.ending: Ending | None = None
        #: Parameters that are fitted to separate rows.
        self.upper = list(self.life_cycle.upper_parameters(model, guide))
        self.batches: Batches | NoArguments = NoArguments()
        self.upper_batches: Batches | None = None
        if x is not None and y is not None:
            lower, upper = _split_levels(len(x), bool(self.upper), seed)
            options: Any = {"batch_size": recipe.batch_size, "seed": seed, "device": self.device}
            self.batches = Batches(x[lower], y[lower], **options)
            self.upper_batches = Batches(x[upper], y[upper], **options) if self.upper else None
        self._rows = () if x is None or y is None else (x, y)
        if recipe.until_converged:  # the phases must fit into the budget
            recipe = replace(recipe, num_steps=min(recipe.num_steps, recipe.max_steps))
        self.recipe, self.seed, self.mode = recipe, seed, mode
        self.early_stopping = early_stopping
        self.parameters = [p for p in self.objective.parameters() if p.requires_grad]
        self.course = self._new_course()
        self.progress = Progress(*self._histories({}))
        self.optimizer = FusedAdam(self.parameters, lr=recipe.lr)
        with seeded(child_seed(seed, NOISE_STREAM), self.device):
            self._rng = _get_rng(self.device)
        self._running = False

    def _new_course(self) -> FixedCourse:
        takes_steps = self.life_cycle.takes_steps
        if self.recipe.until_converged and takes_steps:
            return ConvergingCourse(self.recipe, self)
        return FixedCourse(self.recipe)

    def monitor(self) -> Monitor:
        """Return estimates of ELBO and outputs of the current parameters."""
        batch_size = self.recipe.batch_size
        return Monitor(self.objective, self._rows, batch_size=batch_size, seed=self.seed)

    def run(
        self,
        *,
        progress_bar: bool | None = None,
        checkpoint_every: int = 500,
        on_checkpoint: Callable[["SVI"], None] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Train to the end and return the loss of every step; `ending` tells why it ended.

        Parameters
        ----------
        progress_bar
            Whether to show one; by default only on a terminal.
        checkpoint_every, on_checkpoint
            Steps between two calls of a function of this object; it is also called after the last
            step.
        on_step
            Called with the number of steps after each of them.

        Raises
        ------
        Interrupted
            After SIGINT or SIGTERM, once ``on_checkpoint`` has been called.
        """
        save = on_checkpoint or (lambda svi: None)
        report = on_step or (lambda done: None)
        self.objective.train()
        steps_left = self.course.longest - self.progress.step
        self._gradient_step = GradientStep(self.objective, self.mode, steps_left)
        self.life_cycle.before_training(self.objective.model, self.objective.guide)
        with (
            StopSignal() as stop,
            kept_memory(),
            pyro.settings.context(module_local_params=True),
            self._own_rng(),
            self._bar(progress_bar) as bar,
            warnings.catch_warnings(),
        ):
            # Pyro warns at every step; a diverging run ends with one error.
            warnings.filterwarnings("ignore", "Encountered NaN", UserWarning)
            while not self._finished():
                started = time.monotonic()
                self._step()
                self.progress.seconds += time.monotonic() - started
                if bar.update(1):  # it was refreshed
                    bar.set_postfix_str(self._summary())
                report(self.progress.step)
                if self.progress.step % FINITE_EVERY == 0 or self._finished():
                    self._check_finite()
                if self.progress.step % checkpoint_every == 0 or stop.requested:
                    save(self)
                if stop.requested:
                    raise Interrupted
            self.course.finish(self)
            if self.progress.best and not self._is_better_than_best():
                self.objective.load_state_dict(self.progress.best)
            self.objective.eval()
            model, guide = self.objective.model, self.objective.guide
            self.life_cycle.after_training(model, guide, self.batches)
            self._check_result()
            self.ending = self._ending()
            save(self)
        return self.progress.losses.all().cpu()

    def gradient_norms(self) -> Tensor:
        """Return the norm of the gradient at every `GRADIENT_EVERY`-th step."""
        return self.progress.gradient_norms.all().cpu()

    def choose_mode(self) -> None:
        """Measure whether to compile the steps; nothing else changes."""
        self.mode = choose_mode(self.objective, self.batches[0], self.recipe.num_steps)

    def _finished(self) -> bool:
        progress = self.progress
        return progress.stopped or not self.life_cycle.takes_steps or self.course.is_over(self)

    def _ending(self) -> Ending:
        if self.life_cycle.takes_steps:
            return self.course.ending(self)
        return Ending("computed", 0, math.nan)

    def _step(self) -> None:
        step = self.progress.step
        model, guide = self.objective.model, self.objective.guide
        if step == pretrain_steps(self.recipe):
            self.life_cycle.after_pretraining(model, guide)
        self.objective.kl_weight.fill_(kl_weight(self.recipe, step))
        guide.advance(self.course.progress(step))
        self.optimizer.lr = self.course.lr(step)
        loss = self._gradient_step(*self.batches[step])
        if self.upper_batches is not None:
            self._take_upper_gradients(*self.upper_batches[step])
        if step % GRADIENT_EVERY == 0:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.progress.gradient_norms.append(torch.nn.utils.get_total_norm(gradients))
        if self.recipe.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.grad_clip)
        self.optimizer.step()
        self.progress.losses.append(loss)
        self.progress.step += 1
        self.life_cycle.after_update(model, guide, self.course.progress(self.progress.step))
        self.life_cycle.after_step(model, guide, self.batches, self.progress.step)
        self._maybe_evaluate()
        self.course.after_step(self)

    def _take_upper_gradients(self, x: Tensor, y: Tensor) -> None:
        """Set the gradients of the upper parameters to those of the upper rows."""
        ours = {id(parameter) for parameter in self.upper}
        kept = [(p, p.grad) for p in self.parameters if id(p) not in ours]
        self._gradient_step(x, y)
        for parameter, gradient in kept:
            parameter.grad = gradient

    def _check_finite(self) -> None:
        if not torch.isfinite(self.progress.losses.last(1)).all():
            finite = torch.isfinite(self.progress.losses.all()).tolist()
            raise self._diverged(finite.index(False) + 1)

    def _check_result(self) -> None:
        """Check the objective after the last update, which no step has evaluated."""
        last = max(0, self.progress.step - 1)
        model, guide = self.objective.model, self.objective.guide
        if not math.isfinite(estimate_elbo(model, guide, *self.batches[last])):
            raise self._diverged(self.progress.step)

    def _diverged(self, step: int) -> DivergedError:
        return DivergedError(
            f"the loss is not finite at step {step}. Try a smaller learning rate "
            f"(now {self.recipe.lr}), gradient clipping, or float64."
        )

    # ------------------------------------------------------------------ early stopping

    def _maybe_evaluate(self) -> None:
        held_out, progress = self.early_stopping, self.progress
        if held_out is None or progress.step % held_out.every:
            return
        if kl_weight(self.recipe, progress.step) < 1:  # losses with a smaller weight look better
            return
        loss = -estimate_elbo(self.objective.model, self.objective.guide, held_out.x, held_out.y)
        self.objective.train()
        if loss < progress.best_loss:
            progress.best_loss, progress.evaluations_since_best = loss, 0
            progress.best = {k: v.detach().clone() for k, v in self._trained().items()}
        else:
            progress.evaluations_since_best += 1
            progress.stopped = progress.evaluations_since_best >= held_out.patience

    def _is_better_than_best(self) -> bool:
        """Tell whether the result of a run that ended by itself is better on the held-out rows."""
        held_out = self.early_stopping
        if held_out is None or self.progress.stopped or not self.recipe.until_converged:
            return False
        model, guide = self.objective.model, self.objective.guide
        return -estimate_elbo(model, guide, held_out.x, held_out.y) < self.progress.best_loss

    def _trained(self) -> dict[str, Tensor]:
        """Parameters, and buffers such as running statistics."""
        return dict(self.objective.state_dict(keep_vars=True))

    # ------------------------------------------------------------------ state

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the tensors and the numbers that a resumed run needs."""
        progress = self.progress
        tensors = {f"objective.{k}": v.detach() for k, v in self._trained().items()}
        tensors |= {f"optimizer.{k}": v for k, v in self.optimizer.state().items()}
        tensors |= {f"best.{k}": v for k, v in progress.best.items()}
        rng = _get_rng(self.device) if self._running else self._rng
        tensors |= {f"rng.{k}": v for k, v in rng.items()}
        if len(progress.losses):
            tensors["losses"] = progress.losses.all().clone()
            tensors["gradient_norms"] = progress.gradient_norms.all().clone()
        extra, numbers = self.course.state()
        tensors |= {f"course.{k}": v for k, v in extra.items()}
        known = {name: getattr(progress, name) for name in _NUMBERS}
        return tensors, known | {f"course.{k}": v for k, v in numbers.items()}

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        """Continue from what `state` returned."""
        moved = {k: v if k.startswith("rng.") else v.to(self.device) for k, v in tensors.items()}
        self.objective.load_state_dict(under("objective.", moved))
        self.optimizer.load_state(under("optimizer.", moved))
        self._rng = under("rng.", moved)
        read: Any = {name: kind(numbers[name]) for name, kind in _NUMBERS.items()}
        self.progress = Progress(*self._histories(moved), best=under("best.", moved), **read)
        self.course = self._new_course()
        own = {k.removeprefix("course."): v for k, v in numbers.items() if "course." in k}
        if own:
            self.course.load_state(self, under("course.", moved), own)

    def _histories(self, tensors: dict[str, Tensor]) -> tuple[History, History]:
        """Return the histories of losses and gradient norms, with room for all steps."""
        num_steps = self.course.longest
        num_looks = math.ceil(num_steps / GRADIENT_EVERY)
        losses = History(num_steps, tensors.get("losses"))
        return losses, History(num_looks, tensors.get("gradient_norms"))

    def _bar(self, wanted: bool | None) -> "tqdm[Any]":
        return tqdm(
            total=self.course.bar_total,
            initial=self.progress.step,
            disable=None if wanted is None else not wanted,  # None: only on a terminal
            unit="step",
            mininterval=REFRESH_SECONDS,
        )

    def _summary(self) -> str:
        """Return ELBO and KL for the progress bar."""
        shown = f"ELBO {-float(self.progress.losses.last(50).mean()):.5g}"
        if isinstance(self.objective.model, BNN):
            kl = total_divergence(self.objective.model, self.objective.guide)
            shown += f", KL {kl:.5g}"
        return ", ".join(part for part in (self.course.summary(), shown) if part)

    @contextlib.contextmanager
    def _own_rng(self) -> Iterator[None]:
        """Use the random state of this run, and restore the caller's at the end."""
        caller = _get_rng(self.device)
        _set_rng(self._rng, self.device)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            self._rng = _get_rng(self.device)
            _set_rng(caller, self.device)


def _split_levels(num_rows: int, has_upper: bool, seed: int) -> tuple[Any, Any]:
    """Return the rows of the lower and the upper level; one half each if there are two levels."""
    if not has_upper:
        return slice(None), slice(0)
    if num_rows < 2:
        raise ZooError("two levels are fitted to different rows. Got only one row.")
    generator = torch.Generator().manual_seed(child_seed(seed, LEVEL_STREAM))
    order = torch.randperm(num_rows, generator=generator)
    half = num_rows // 2
    return order[half:].sort().values, order[:half].sort().values


def _get_rng(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_rng(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
