"""One chain of a sampler, as a task that can be sent to another process.

A task holds the density as a recorded graph, so that a worker needs neither Pyro nor the model, and
all settings and seeds: the draws are the same on every executor.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule

from zoo.infer import private_nutpie
from zoo.infer.nuts.native import Native, Program, nan_if_singular
from zoo.infer.recording import Backend
from zoo.infer.rng import seeded
from zoo.infer.tasks.running import Report

Array = NDArray[np.float64]
Engine = Literal["nutpie", "pyro"]
#: A function of one point that returns the log density and its gradient.
ValueAndGradient = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True)
class Settings:
    """Settings of a chain; it is stopped after ``max_seconds`` with the draws it has."""

    num_warmup: int = 1000
    num_samples: int = 1000
    target_accept: float = 0.8
    max_tree_depth: int = 10
    low_rank: bool = True
    engine: Engine = "nutpie"
    max_seconds: float = math.inf


@dataclass(frozen=True)
class Compiled:
    """A recorded density with its hash, and how it is run."""

    graph: GraphModule
    size: int
    backend: Backend
    key: str

    def function(self) -> ValueAndGradient:
        """Return the function for one chain; it is compiled once per process."""
        if self.backend == "replay":
            return self._replay
        found = _PROGRAMS.get(self.key)
        if found is None:
            found = _PROGRAMS[self.key] = Program(self.graph, self.size)
            while len(_PROGRAMS) > MAX_PROGRAMS:
                del _PROGRAMS[next(iter(_PROGRAMS))]
        return found.function()

    @nan_if_singular
    def _replay(self, flat: Array) -> tuple[float, Array]:
        with torch.no_grad():
            value, slope = self.graph(torch.from_numpy(flat))
        return value.item(), slope.detach().numpy()


#: Compiled densities of this process. Each holds its data, so only a few are kept.
_PROGRAMS: dict[str, Program] = {}
MAX_PROGRAMS = 4


@dataclass(frozen=True)
class Chain:
    """Flat draws of one chain and their statistics; times are CPU seconds.

    A chain that was stopped has fewer draws; ``num_done`` counts all, with those of the warm-up.
    """

    draws: Array
    stats: dict[str, NDArray[Any]]
    warmup_seconds: float
    sampling_seconds: float
    num_done: int


def run_chain(
    density: Compiled | ValueAndGradient,
    start: Array,
    seed: int,
    settings: Settings,
    report: Report | None = None,
) -> Chain:
    """Run one chain from a point; the number of draws is reported after each of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        function = density.function() if isinstance(density, Compiled) else density
        run = {"nutpie": _run_nutpie, "pyro": _run_pyro}[settings.engine]
        return run(function, start, seed, settings, report or (lambda done: None))
    finally:
        torch.set_num_threads(threads)


class _Clock:
    """CPU times of all draws."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self.settings, self.report = settings, report
        self.times = [time.process_time()]

    def tick(self) -> None:
        self.times.append(time.process_time())
        self.report(self.num_done)

    @property
    def num_done(self) -> int:
        """Number of draws so far."""
        return len(self.times) - 1

    def seconds(self) -> tuple[float, float]:
        """Return the CPU seconds of warm-up and sampling."""
        boundary = self.times[min(self.settings.num_warmup, len(self.times) - 1)]
        return boundary - self.times[0], self.times[-1] - boundary


class _OutOfTimeError(Exception):
    """Ends Pyro's sampler, which cannot be stopped from outside."""


class _NotFiniteError(ValueError):
    """Tells nutpie to end a trajectory as divergent instead of failing."""

    is_recoverable = True


#: Names of statistics in nutpie and in ArviZ.
_STATISTICS = {
    "energy": "energy",
    "depth": "tree_depth",
    "n_steps": "n_steps",
    "diverging": "diverging",
    "step_size": "step_size",
    "mean_tree_accept": "acceptance_rate",
    "logp": "lp",
}


def _run_nutpie(
    function: ValueAndGradient, start: Array, seed: int, settings: Settings, report: Report
) -> Chain:
    clock = _Clock(settings, report)
    function = function if isinstance(function, Native) else _Stoppable(function)
    sampler = _begin_nutpie(
        function,
        start,
        clock,
        draws=settings.num_samples,
        tune=settings.num_warmup,
        chains=1,
        cores=1,
        seed=seed,
        save_warmup=False,
        progress_bar=False,
        low_rank_modified_mass_matrix=settings.low_rank,
        target_accept=settings.target_accept,
        maxdepth=settings.max_tree_depth,
        blocking=False,
    )
    try:
        trace = _wait(sampler, function, settings.max_seconds)
    except BaseException:
        function.stop()
        sampler.cancel()
        raise
    if "posterior" not in trace.groups():
        empty = {ours: np.empty(0) for ours in _STATISTICS.values()}
        return Chain(np.empty((0, len(start))), empty, *clock.seconds(), clock.num_done)
    stats = trace["sample_stats"]
    return Chain(
        np.asarray(trace["posterior"]["flat"].values[0]),
        {ours: np.asarray(stats[theirs].values[0]) for theirs, ours in _STATISTICS.items()},
        *clock.seconds(),
        clock.num_done,
    )


class _Stoppable:
    """A density in Python that can be told to fail, which ends a trajectory at once."""

    def __init__(self, function: ValueAndGradient) -> None:
        self._function, self._stopped = function, False

    def __call__(self, flat: Array) -> tuple[float, Array]:
        return (math.nan, flat) if self._stopped else self._function(flat)

    def stop(self) -> None:
        self._stopped = True


def _wait(sampler: Any, function: "Native | _Stoppable", max_seconds: float) -> Any:
    """Return the trace at the end, or what there is of it when the time is over."""
    try:
        return sampler.wait(timeout=None if math.isinf(max_seconds) else max_seconds)
    except TimeoutError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about empty arrays
            trace = sampler.inspect()
        function.stop()
        sampler.cancel()
        return trace


def _begin_nutpie(function: ValueAndGradient, start: Array, clock: _Clock, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from packages that it imports
        import nutpie
    if isinstance(function, Native) and private_nutpie.is_known():
        with contextlib.suppress(*private_nutpie.DIFFERS):
            model = private_nutpie.native_model(function, start, clock.tick)
            return nutpie.sample(model, **options)
    return nutpie.sample(_python_model(function, start, clock), **options)


def _python_model(function: ValueAndGradient, start: Array, clock: _Clock) -> Any:
    """Return nutpie's model of a density that is called from Python."""
    from nutpie.compiled_pyfunc import from_pyfunc

    def density(flat: Array) -> tuple[float, Array]:
        value, slope = function(np.array(flat))
        if not (math.isfinite(value) and np.isfinite(slope).all()):
            raise _NotFiniteError("the density is not finite")
        return value, slope

    def expand(flat: Array) -> dict[str, Array]:
        clock.tick()
        return {"flat": np.array(flat)}

    return from_pyfunc(
        len(start),
        lambda: density,
        lambda seed1, seed2, chain: expand,
        [np.dtype("float64")],
        [(len(start),)],
        ["flat"],
        make_initial_point_fn=lambda seed: start,
    )


def _run_pyro(
    function: ValueAndGradient, start: Array, seed: int, settings: Settings, report: Report
) -> Chain:
    from pyro.infer import MCMC, NUTS

    clock = _Clock(settings, report)
    deadline = time.monotonic() + settings.max_seconds
    gradients = 0

    class Potential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, flat: Tensor) -> Tensor:
            nonlocal gradients
            gradients += 1
            if time.monotonic() > deadline:
                raise _OutOfTimeError
            value, slope = function(flat.detach().numpy())
            ctx.save_for_backward(-torch.from_numpy(slope))
            return flat.new_tensor(-value)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
            slope: Tensor = ctx.saved_tensors[0]
            return slope * grad_outputs[0]

    counts, steps = [0], []

    def hook(kernel: Any, sample: Any, stage: str, index: int) -> None:
        counts.append(gradients)
        steps.append(float(kernel.step_size))
        clock.tick()

    def potential(values: dict[str, Tensor]) -> Any:
        return Potential.apply(values["flat"])

    with seeded(seed, torch.device("cpu")):
        kernel = NUTS(
            potential_fn=potential,
            full_mass=settings.low_rank,
            target_accept_prob=settings.target_accept,
            max_tree_depth=settings.max_tree_depth,
        )
        mcmc = MCMC(
            kernel,
            num_samples=settings.num_samples,
            warmup_steps=settings.num_warmup,
            initial_params={"flat": torch.from_numpy(start)},
            hook_fn=hook,
            disable_progbar=True,
        )
        try:
            mcmc.run()
        except _OutOfTimeError:  # Pyro loses the draws
            empty = {name: np.empty(0) for name in _STATISTICS.values()}
            return Chain(np.empty((0, len(start))), empty, *clock.seconds(), clock.num_done)
    draws = mcmc.get_samples()["flat"].numpy()
    num_steps = np.diff(counts)[-settings.num_samples :]
    diverging = np.zeros(settings.num_samples, dtype=bool)
    diverging[mcmc.diagnostics()["divergences"]["chain 0"]] = True
    # Pyro keeps neither energies nor acceptance rates of single draws.
    unknown = np.full(settings.num_samples, np.nan)
    stats = {
        "energy": unknown,
        "tree_depth": np.ceil(np.log2(num_steps + 1)).astype(np.int64),
        "n_steps": num_steps,
        "diverging": diverging,
        "step_size": np.array(steps[-settings.num_samples :]),
        "acceptance_rate": unknown,
        "lp": np.array([function(draw)[0] for draw in draws]),
    }
    return Chain(draws, stats, *clock.seconds(), clock.num_done)
