"""Draws from the posterior of any Pyro model by the No-U-Turn sampler (Hoffman and Gelman 2014).

The density of the model is recorded and compiled (`zoo.infer.nuts.density`), and each chain is a
task of an executor (`zoo.infer.nuts.chain`). The sampler is nutpie, whose mass matrix is diagonal,
or diagonal plus low rank, and adapted from draws and gradients; Pyro's own sampler is used if
nutpie is not installed. Learned correlations make every step more expensive and may save steps; two
short trial chains decide.

Hierarchical normal sites are sampled in adapted coordinates: a short pilot chain in non-centred
coordinates estimates what the data say about each element, and the parameterisation follows from it
(`zoo.infer.nuts.whitening`). Smooth log-uniform sites are flattened. The posterior stays the same.
"""

import contextlib
import importlib
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.errors import ConfigError, ZooError
from zoo.infer.nuts.budget import Budget, BudgetError, num_workers
from zoo.infer.nuts.chain import Chain, Compiled, Engine, Settings, ValueAndGradient, run_chain
from zoo.infer.nuts.compiling import compile_density
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.regions import Regions, find_regions
from zoo.infer.nuts.starts import (
    WIDTH,
    choose,
    follow,
    group,
    jittered,
    num_paths,
    spread_out,
)
from zoo.infer.nuts.whitening import Hint
from zoo.infer.recording import Backend
from zoo.infer.tasks.executor import SerialExecutor
from zoo.infer.tasks.running import run_tasks

#: Warm-up and draws of the pilot chain, and number of draws used from it.
PILOT_WARMUP = 500
PILOT_SAMPLES = 200
PILOT_ROWS = 100
#: Warm-up and draws of the two chains that choose the mass matrix; required gain in efficiency by
#: correlations; and smallest ratio of the draws of the run to those of the two chains.
TRIAL_WARMUP = 300
TRIAL_SAMPLES = 100
TRIAL_GAIN = 1.25
TRIAL_WORTH = 2
#: Shares of the budget that each trial chain and the paths may take.
TRIAL_SHARE = 0.1
PATHS_SHARE = 0.2
#: Fewest draws of a chain that was stopped.
MIN_DRAWS = 4
#: Chains that take no longer than this run in this process, at so many steps per draw.
SHORT_SECONDS = 10.0
STEPS_PER_DRAW = 20


@dataclass(frozen=True)
class Draws:
    """Draws of several chains.

    Attributes
    ----------
    values
        Constrained values by site, shape ``(chains, draws, ...)``.
    stats
        Sampler statistics under ArviZ's names, shape ``(chains, draws)``.
    warmup_seconds, sampling_seconds
        CPU seconds of all chains; pilot chains count as warm-up.
    compile_seconds
        Wall-clock seconds of recording and compiling.
    recipe
        Settings of the sampler, and what it did: sites that were reparameterised, number of paths
        and of their groups, kind of mass matrix.
    regions
        Computes the regions in which the chains stayed; None if they are not known any more.
    is_complete
        Whether no chain was stopped before its end.
    """

    values: dict[str, NDArray[Any]]
    stats: dict[str, NDArray[Any]]
    warmup_seconds: float
    sampling_seconds: float
    compile_seconds: float
    recipe: dict[str, Any]
    regions: Callable[[], Regions] | None = None
    is_complete: bool = True

    @property
    def num_divergences(self) -> int:
        """Number of divergent transitions after the warm-up."""
        return int(self.stats["diverging"].sum())


def sample_nuts(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    low_rank: bool | None = None,
    reparameterise: bool = True,
    seed: int = 0,
    engine: Engine = "nutpie",
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
    init: Mapping[str, Any] | None = None,
    dispersed: bool = False,
    points: Sequence[Mapping[str, Any]] = (),
    max_seconds: float = math.inf,
    compiled: bool = True,
) -> Draws:
    """Sample the posterior of a Pyro model. The same seed gives the same draws on every executor.

    Parameters
    ----------
    model
        Any Pyro model with continuous latent sites. Its parameters are constants.
    args, kwargs
        Its arguments, including the observations.
    num_chains, num_warmup, num_samples
        Number of chains, and of warm-up draws and kept draws per chain.
    target_accept
        Target acceptance rate; higher values are slower and diverge less.
    max_tree_depth
        A trajectory has at most two to this power steps.
    low_rank
        Whether the mass matrix learns correlations (a dense matrix with Pyro's engine); by default
        if that saves steps, and in short runs.
    reparameterise
        Whether hierarchical normal sites are whitened.
    seed
        Seed of all chains.
    engine
        ``nutpie`` or ``pyro``.
    executor
        Where chains run: an executor or a name for `zoo.infer.tasks.executor.make_executor`.
    progress_bar
        Whether to show a progress bar; by default on a terminal.
    init
        Constrained initial values by site, which are jittered; by default unconstrained zero.
    dispersed
        Whether chains start in the modes that optimisation paths from dispersed points find
        (`zoo.infer.nuts.starts`), if there is no ``init``.
    points
        Values by site, such as draws of a fit, that are spread out and added to those points.
    max_seconds
        Wall-clock seconds for recording, compiling, warm-up and sampling. A chain that takes more
        than its share is stopped; all chains are then cut to the length of the shortest. Only
        recording and compiling cannot be interrupted.
    compiled
        Whether to compile the density; a short run is faster without.

    Raises
    ------
    BudgetError
        If a chain was stopped before it had draws.
    ZooError
        If the model cannot be sampled, or an option is out of range.
    """
    budget = Budget(max_seconds)
    settings = Settings(
        num_warmup,
        num_samples,
        target_accept,
        max_tree_depth,
        low_rank is not False,
        _choose_engine(engine),
    )
    _check(settings, num_chains, max_seconds)
    density = LogDensity(model, args, kwargs)
    backend: Backend = "inductor" if compiled else "replay"
    run = _Run(density, settings, num_chains, seed, init, backend, budget)
    return run.sample(
        executor,
        progress_bar,
        reparameterise=reparameterise,
        choose_matrix=low_rank is None,
        dispersed=dispersed,
        points=points,
    )


def _choose_engine(engine: str) -> Engine:
    if engine not in ("nutpie", "pyro"):
        raise ConfigError(f"unknown engine {engine!r}. Accepted: nutpie, pyro.")
    if engine == "nutpie" and importlib.util.find_spec("nutpie") is None:
        warnings.warn(
            "nutpie is not installed: Pyro's sampler is used, which is slower and does not report "
            "energies. pip install nutpie",
            stacklevel=3,
        )
        return "pyro"
    return "pyro" if engine == "pyro" else "nutpie"


def _check(settings: Settings, num_chains: int, max_seconds: float) -> None:
    least = {"num_warmup": 20, "num_samples": 4, "max_tree_depth": 1}
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ConfigError(f"{name} must be at least {bound}. Got {getattr(settings, name)}.")
    if num_chains < 1:
        raise ConfigError(f"num_chains must be at least 1. Got {num_chains}.")
    if not max_seconds > 0:
        raise ConfigError(f"max_seconds must be positive. Got {max_seconds}.")
    if not 0 < settings.target_accept < 1:
        raise ConfigError(
            f"target_accept must be between 0 and 1, ends excluded. Got {settings.target_accept}."
        )


@dataclass
class _Run:
    """Sampling of one density: pilot chain, starting points, trial chains, chains."""

    density: LogDensity
    settings: Settings
    num_chains: int = 4
    seed: int = 0
    init: Mapping[str, Any] | None = None
    backend: Backend = "inductor"
    budget: Budget = field(default_factory=Budget)
    compile_seconds: float = 0.0
    pilot_seconds: float = 0.0

    def sample(
        self,
        executor: Executor | str | None,
        progress_bar: bool | None,
        *,
        reparameterise: bool,
        choose_matrix: bool,
        dispersed: bool,
        points: Sequence[Mapping[str, Any]],
    ) -> Draws:
        children = np.random.SeedSequence(self.seed).spawn(self.num_chains + 3)
        pilot_seed, *seeds, trial_seed, start_seed = (
            int(child.generate_state(1)[0]) for child in children
        )
        hints = self._hints(pilot_seed) if reparameterise else {}
        flat_sites = self.density.log_uniform_sites() if reparameterise else ()
        density = self.density.with_hints(hints, flatten=reparameterise)
        function = self._compiled(density)
        self.budget.require("recording and compiling")
        call = function.function() if isinstance(function, Compiled) else function
        if dispersed and self.init is None:
            starts, found = self._dispersed(density, call, start_seed, points)
        else:
            centre = self._centre(density)
            starts, found = [jittered(call, centre, seed) for seed in seeds], {}
        if choose_matrix and self._is_worth_a_trial():
            self._choose_matrix(partial(run_chain, function, starts[0], trial_seed))
        if not isinstance(function, Compiled):
            executor = SerialExecutor()
        elif executor is None and self._is_short(call, starts[0]):
            executor = SerialExecutor()
        share = num_workers(executor, self.num_chains) / self.num_chains
        settings = replace(self.settings, max_seconds=self.budget.left * share)
        chains = run_tasks(
            [
                partial(run_chain, function, start, seed, settings)
                for start, seed in zip(starts, seeds, strict=True)
            ],
            executor,
            length=self.settings.num_warmup + self.settings.num_samples,
            unit="draw",
            description="NUTS",
            progress_bar=progress_bar,
        )
        chains = self._cut(chains)
        recipe = asdict(self.settings) | {
            "num_samples": len(chains[0].draws),
            "num_chains": self.num_chains,
            "seed": self.seed,
            "reparameterise": reparameterise,
            "reparameterised": sorted({*hints, *flat_sites}),
            "backend": function.backend if isinstance(function, Compiled) else "eager",
            **found,
        }
        del recipe["max_seconds"]
        flat = [chain.draws for chain in chains]
        return Draws(
            density.unpack(np.stack(flat)),
            {name: np.stack([c.stats[name] for c in chains]) for name in chains[0].stats},
            self.pilot_seconds + sum(chain.warmup_seconds for chain in chains),
            sum(chain.sampling_seconds for chain in chains),
            self.compile_seconds,
            recipe,
            partial(find_regions, call, flat, [c.stats["lp"] for c in chains], start_seed),
            len(flat[0]) == self.settings.num_samples,
        )

    def _compiled(self, density: LogDensity) -> Compiled | ValueAndGradient:
        started = time.perf_counter()
        function = compile_density(density, self.backend)
        self.compile_seconds += time.perf_counter() - started
        return function

    def _centre(self, density: LogDensity) -> NDArray[np.float64]:
        return np.zeros(density.size) if self.init is None else density.pack(self.init).numpy()

    def _cut(self, chains: list[Chain]) -> list[Chain]:
        """Return chains of the length of the shortest one."""
        shortest = min(len(chain.draws) for chain in chains)
        total = self.settings.num_warmup + self.settings.num_samples
        if shortest < MIN_DRAWS:
            done = [chain.num_done for chain in chains]
            needed = self.budget.spent * total / max(1, min(done))
            raise BudgetError(
                f"out of budget: after {self.budget.spent:.0f} of {self.budget.seconds:.0f} s the "
                f"slowest of {len(chains)} chains has {min(done)} of {total} draws, warm-up "
                f"included. About {needed:.0f} s would be needed."
            )
        return [
            replace(
                chain,
                draws=chain.draws[:shortest],
                stats={name: values[:shortest] for name, values in chain.stats.items()},
            )
            for chain in chains
        ]

    def _dispersed(
        self,
        density: LogDensity,
        function: ValueAndGradient,
        seed: int,
        points: Sequence[Mapping[str, Any]],
    ) -> tuple[list[NDArray[np.float64]], dict[str, Any]]:
        """Return starts of the chains, and what is to be said about them."""
        started = time.process_time()
        rng = np.random.default_rng(seed)
        number = num_paths(density.size)
        given = []
        for point in points:
            with contextlib.suppress(ZooError):  # sites of an improper prior may be others
                given.append(density.pack(point).numpy())
        wide = spread_out(np.stack(given)) if given else np.empty((0, density.size))
        prior = density.prior_points([int(s) for s in rng.integers(2**31, size=number // 2)])
        uniform = rng.uniform(-WIDTH, WIDTH, (number - len(prior), density.size))
        paths = []
        limit = self.budget.left * (1 - PATHS_SHARE)
        for start in np.concatenate([uniform, prior, wide]):
            path = follow(function, start, rng)
            paths += [] if path is None else [path]
            if paths and self.budget.left < limit:
                break
        if not paths:  # explains what is wrong
            jittered(function, self._centre(density), seed)
        groups = group(function, paths, self.num_chains)
        self.pilot_seconds += time.process_time() - started
        said = {"paths": len(paths), "paths_from_fit": len(given), "path_groups": len(groups)}
        return choose(groups, self.num_chains), said

    def _is_short(self, function: ValueAndGradient, start: NDArray[np.float64]) -> bool:
        """Return whether the chains take no longer than starting processes."""
        started = time.perf_counter()
        for _ in range(20):
            function(start)
        step = (time.perf_counter() - started) / 20
        num_draws = self.num_chains * (self.settings.num_warmup + self.settings.num_samples)
        return step * STEPS_PER_DRAW * num_draws < SHORT_SECONDS

    def _hints(self, seed: int) -> dict[str, Hint]:
        names = self.density.hierarchical_normals()
        if not names:
            return {}
        # In full shape, so that compiled code can be reused with the estimated hints.
        zeros = {n: torch.zeros(self.density.shapes[n], dtype=torch.float64) for n in names}
        nothing = {name: Hint(zero, zero) for name, zero in zeros.items()}
        density = self.density.with_hints(nothing, flatten=True)
        function = self._compiled(density)
        self.budget.require("recording and compiling")
        settings = replace(
            self.settings,
            num_warmup=PILOT_WARMUP,
            num_samples=PILOT_SAMPLES,
            max_seconds=self.budget.left,
        )
        started = time.process_time()
        call = function.function() if isinstance(function, Compiled) else function
        start = jittered(call, self._centre(density), seed)
        rows = run_chain(function, start, seed, settings).draws[:: PILOT_SAMPLES // PILOT_ROWS]
        self.budget.require("the pilot chain")
        hints = density.estimate_hints(rows, names)
        self.pilot_seconds += time.process_time() - started
        return hints

    def _is_worth_a_trial(self) -> bool:
        num_draws = self.num_chains * (self.settings.num_warmup + self.settings.num_samples)
        return (
            self.settings.engine == "nutpie"
            and self.backend == "inductor"
            and num_draws >= TRIAL_WORTH * 2 * (TRIAL_WARMUP + TRIAL_SAMPLES)
        )

    def _choose_matrix(self, run: Callable[[Settings], Chain]) -> None:
        """Choose whether the mass matrix learns correlations by effective draws per step.

        Measured seconds would make the draws depend on the machine.
        """
        started = time.process_time()
        trial = replace(
            self.settings,
            num_warmup=TRIAL_WARMUP,
            num_samples=TRIAL_SAMPLES,
            max_seconds=self.budget.left * TRIAL_SHARE,
        )
        chains = [run(replace(trial, low_rank=choice)) for choice in (True, False)]
        if min(len(chain.draws) for chain in chains) == TRIAL_SAMPLES:
            low_rank, diagonal = map(_efficiency, chains)
            self.settings = replace(self.settings, low_rank=low_rank >= TRIAL_GAIN * diagonal)
        self.pilot_seconds += time.process_time() - started


def _efficiency(chain: Chain) -> float:
    """Return the geometric mean over coordinates of the effective draws per step."""
    arviz_stats = importlib.import_module("arviz_stats")  # heavy, and not typed

    sizes = arviz_stats.ess(chain.draws[None], method="bulk")
    return float(np.exp(np.nanmean(np.log(sizes))) / chain.stats["n_steps"].sum())
