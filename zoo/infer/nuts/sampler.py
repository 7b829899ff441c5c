"""Draws from the posterior of any Pyro model by the No-U-Turn sampler (Hoffman and Gelman 2014).

The density of the model is recorded and compiled (`zoo.infer.nuts.density`), and each chain is a
task of an executor (`zoo.infer.nuts.chain`). The sampler is nutpie, whose mass matrix is diagonal,
or diagonal plus low rank, and adapted from draws and gradients; Pyro's own sampler is used if
nutpie is not installed. Learned correlations make every step more expensive and may save steps; two
short trial chains decide.

Hierarchical normal sites are sampled in adapted coordinates: a short pilot chain in non-centred
coordinates estimates what the data say about each element, and the parameterisation follows from it
(`zoo.infer.nuts.whitening`). The posterior stays the same.
"""

import hashlib
import importlib
import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.errors import ConfigError
from zoo.infer.nuts.chain import Chain, Compiled, Engine, Settings, ValueAndGradient, run_chain
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.whitening import Hint
from zoo.infer.recording import CANNOT, Backend, cause_of
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
TRIAL_GAIN = 1.1
TRIAL_WORTH = 2


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
        Settings of the sampler.
    """

    values: dict[str, NDArray[Any]]
    stats: dict[str, NDArray[Any]]
    warmup_seconds: float
    sampling_seconds: float
    compile_seconds: float
    recipe: dict[str, Any]

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
    compiled
        Whether to compile the density; a short run is faster without.

    Raises
    ------
    ZooError
        If the model cannot be sampled, or an option is out of range.
    """
    settings = Settings(
        num_warmup,
        num_samples,
        target_accept,
        max_tree_depth,
        low_rank is not False,
        _choose_engine(engine),
    )
    _check(settings, num_chains)
    density = LogDensity(model, args, kwargs)
    run = _Run(density, settings, num_chains, seed, init, "inductor" if compiled else "replay")
    return run.sample(
        executor, progress_bar, reparameterise=reparameterise, choose_matrix=low_rank is None
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


def _check(settings: Settings, num_chains: int) -> None:
    least = {"num_warmup": 20, "num_samples": 4, "max_tree_depth": 1}
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ConfigError(f"{name} must be at least {bound}. Got {getattr(settings, name)}.")
    if num_chains < 1:
        raise ConfigError(f"num_chains must be at least 1. Got {num_chains}.")
    if not 0 < settings.target_accept < 1:
        raise ConfigError(
            f"target_accept must be between 0 and 1, ends excluded. Got {settings.target_accept}."
        )


def compile_density(
    density: LogDensity, backend: Backend = "inductor"
) -> Compiled | ValueAndGradient:
    """Record and compile a density.

    If that fails, there is one warning, and the density is replayed, or run by Pyro as a plain
    function, which cannot be sent to another process.
    """
    try:
        graph = density.capture()
    except CANNOT as error:
        warnings.warn(
            "the density cannot be captured; it is run by Pyro, slowly and in this process: "
            + cause_of(error),
            stacklevel=2,
        )
        return density.eager
    compiled = Compiled(graph, density.size, backend, fingerprint(density, graph))
    try:
        compiled.function()
    except CANNOT as error:
        warnings.warn(
            "the density cannot be compiled and is replayed step by step: " + cause_of(error),
            stacklevel=2,
        )
        compiled = replace(compiled, backend="replay")
        compiled.function()
    return compiled


def fingerprint(density: LogDensity, graph: torch.fx.GraphModule) -> str:
    """Return a hash of sites, operations, hyper-parameters and data, not of the source code."""
    digest = hashlib.sha256(repr(density.sites).encode())
    digest.update(graph.code.encode())
    constants = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    for name in sorted(set(map(str, constants))):
        value = getattr(graph, name)
        if isinstance(value, Tensor):
            digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass
class _Run:
    """Sampling of one density: pilot chain, trial chains, chains."""

    density: LogDensity
    settings: Settings
    num_chains: int = 4
    seed: int = 0
    init: Mapping[str, Any] | None = None
    backend: Backend = "inductor"
    compile_seconds: float = 0.0
    pilot_seconds: float = 0.0

    def sample(
        self,
        executor: Executor | str | None,
        progress_bar: bool | None,
        *,
        reparameterise: bool,
        choose_matrix: bool,
    ) -> Draws:
        children = np.random.SeedSequence(self.seed).spawn(self.num_chains + 2)
        pilot_seed, *seeds, trial_seed = (int(child.generate_state(1)[0]) for child in children)
        hints = self._hints(pilot_seed) if reparameterise else {}
        density = self.density.with_hints(hints)
        function, begin = self._prepared(density)
        if choose_matrix and self._is_worth_a_trial():
            self._choose_matrix(partial(begin, trial_seed))
        chains = run_tasks(
            [partial(begin, seed, self.settings) for seed in seeds],
            executor if isinstance(function, Compiled) else SerialExecutor(),
            length=self.settings.num_warmup + self.settings.num_samples,
            unit="draw",
            description="NUTS",
            progress_bar=progress_bar,
        )
        recipe = asdict(self.settings) | {
            "num_chains": self.num_chains,
            "seed": self.seed,
            "reparameterised": sorted(hints),
            "backend": function.backend if isinstance(function, Compiled) else "eager",
        }
        return Draws(
            density.unpack(np.stack([chain.draws for chain in chains])),
            {name: np.stack([c.stats[name] for c in chains]) for name in chains[0].stats},
            self.pilot_seconds + sum(chain.warmup_seconds for chain in chains),
            sum(chain.sampling_seconds for chain in chains),
            self.compile_seconds,
            recipe,
        )

    def _prepared(
        self, density: LogDensity
    ) -> tuple[Compiled | ValueAndGradient, Callable[..., Chain]]:
        """Return the compiled density, and a function that runs a chain."""
        started = time.perf_counter()
        function = compile_density(density, self.backend)
        self.compile_seconds += time.perf_counter() - started
        centre = np.zeros(density.size) if self.init is None else density.pack(self.init).numpy()
        return function, partial(run_chain, function, centre)

    def _hints(self, seed: int) -> dict[str, Hint]:
        names = self.density.hierarchical_normals()
        if not names:
            return {}
        # In full shape, so that compiled code can be reused with the estimated hints.
        zeros = {n: torch.zeros(self.density.shapes[n], dtype=torch.float64) for n in names}
        density = self.density.with_hints({name: Hint(zero, zero) for name, zero in zeros.items()})
        _, begin = self._prepared(density)
        settings = replace(self.settings, num_warmup=PILOT_WARMUP, num_samples=PILOT_SAMPLES)
        started = time.process_time()
        rows = begin(seed, settings).draws[:: PILOT_SAMPLES // PILOT_ROWS]
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
        trial = replace(self.settings, num_warmup=TRIAL_WARMUP, num_samples=TRIAL_SAMPLES)
        low_rank, diagonal = (
            _efficiency(run(replace(trial, low_rank=choice))) for choice in (True, False)
        )
        self.settings = replace(self.settings, low_rank=low_rank >= TRIAL_GAIN * diagonal)
        self.pilot_seconds += time.process_time() - started


def _efficiency(chain: Chain) -> float:
    """Return the geometric mean over coordinates of the effective draws per step."""
    arviz_stats = importlib.import_module("arviz_stats")  # heavy, and not typed

    sizes = arviz_stats.ess(chain.draws[None], method="bulk")
    return float(np.exp(np.nanmean(np.log(sizes))) / chain.stats["n_steps"].sum())
