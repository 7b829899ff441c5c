"""Draws from the posterior of any Pyro model by the No-U-Turn sampler (Hoffman and Gelman 2014).

The model's density is recorded and compiled (`zoo.infer.density`) and each chain is a task of an
executor (`zoo.infer.chain`). The sampler is nutpie's, whose mass matrix is diagonal plus low rank
and adapted from draws and gradients; Pyro's own takes its place where nutpie is not installed.

Hierarchical normal sites are sampled in coordinates that suit both few and many data: a short pilot
chain in non-centred coordinates estimates what the data say about each element, and the
parameterisation follows from it (`zoo.infer.density.site_transform`). The posterior stays the same.
"""

import contextlib
import hashlib
import importlib.util
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from zoo.errors import ConfigError
from zoo.infer.capture import CANNOT, cause_of
from zoo.infer.chain import (
    NOTE_SECONDS,
    Backend,
    Chain,
    Compiled,
    Engine,
    ProgressNote,
    Report,
    Settings,
    ValueAndGradient,
    run_chain,
)
from zoo.infer.density import Hint, LogDensity
from zoo.infer.executor import Processes, SerialExecutor, make_executor

#: Warm-up and draws of the pilot chain, and how many of the draws are looked at.
PILOT_WARMUP = 500
PILOT_SAMPLES = 200
PILOT_ROWS = 100


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
        CPU seconds, all chains together; the pilot chain belongs to the warm-up.
    compile_seconds
        Wall seconds of recording and compiling.
    recipe
        What the draws were made with.
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
    low_rank: bool = True,
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
        What it is called with, the observations among them.
    num_chains, num_warmup, num_samples
        Number of chains; draws per chain that adapt the sampler and are thrown away; draws kept.
    target_accept
        Acceptance rate the step size is adapted to; higher is slower and diverges less.
    max_tree_depth
        A trajectory has at most two to this power steps.
    low_rank
        Whether the mass matrix learns correlations (Pyro's engine: a dense one).
    reparameterise
        Whether hierarchical normal sites are whitened.
    seed
        Seed of all chains.
    engine
        ``nutpie`` or ``pyro``.
    executor
        Where chains run: an executor or a name that `zoo.infer.executor.make_executor` knows.
    progress_bar
        Whether a bar is shown; by default on a terminal.
    init
        Constrained values by site around which chains start, instead of unconstrained zero.
    compiled
        Whether the density is compiled; for a short run a replay is sooner done.

    Raises
    ------
    ZooError
        If the model cannot be sampled, or an option is out of range.
    """
    settings = Settings(
        num_warmup, num_samples, target_accept, max_tree_depth, low_rank, _choose_engine(engine)
    )
    _check(settings, num_chains)
    density = LogDensity(model, args, kwargs)
    run = _Run(density, settings, seed, progress_bar, compiled=compiled)
    return run.sample(num_chains, executor, init, reparameterise=reparameterise)


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
    """Record and compile a density; what cannot be is run as it is, with one warning.

    Returns
    -------
    Compiled
        Something that can be sent to another process, or a plain function that cannot.
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
    key = fingerprint(density, graph)
    compiled = Compiled(graph, density.size, backend, key)
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
    """Return a hash of a density: its sites, operations, hyper-parameters and data.

    It depends on what the model computes and not on how its source is written.
    """
    digest = hashlib.sha256(repr(density.sites).encode())
    digest.update(graph.code.encode())
    constants = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    for name in sorted(set(map(str, constants))):
        value = getattr(graph, name)
        if isinstance(value, Tensor):
            digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class _Run:
    """The steps of sampling one density."""

    def __init__(
        self,
        density: LogDensity,
        settings: Settings,
        seed: int,
        progress_bar: bool | None,
        *,
        compiled: bool,
    ) -> None:
        self.backend: Backend = "inductor" if compiled else "replay"
        self.density, self.settings, self.progress_bar = density, settings, progress_bar
        self.seeds = np.random.SeedSequence(seed)
        self.seed = seed
        self.compile_seconds = 0.0
        self.pilot_seconds = 0.0

    def sample(
        self,
        num_chains: int,
        executor: Executor | str | None,
        init: Mapping[str, Any] | None,
        *,
        reparameterise: bool,
    ) -> Draws:
        pilot_seed, *seeds = (
            int(child.generate_state(1)[0]) for child in self.seeds.spawn(num_chains + 1)
        )
        hints = self._hints(pilot_seed, init) if reparameterise else {}
        density = self.density.with_hints(hints)
        function = self._compile(density)
        centre = None if init is None else density.pack(init).numpy()
        tasks = [
            partial(run_chain, function, density.size, centre, seed, self.settings)
            for seed in seeds
        ]
        with _opened(executor, function, num_chains) as pool:
            chains = self._gather(pool, tasks)
        recipe = asdict(self.settings) | {
            "num_chains": num_chains,
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

    def _compile(self, density: LogDensity) -> Compiled | ValueAndGradient:
        started = time.perf_counter()
        function = compile_density(density, self.backend)
        self.compile_seconds += time.perf_counter() - started
        return function

    def _hints(self, seed: int, init: Mapping[str, Any] | None) -> dict[str, Hint]:
        names = self.density.random_normals()
        if not names:
            return {}
        zero = torch.zeros((), dtype=torch.float64)
        density = self.density.with_hints({name: Hint(zero, zero) for name in names})
        function = self._compile(density)
        settings = replace(self.settings, num_warmup=PILOT_WARMUP, num_samples=PILOT_SAMPLES)
        centre = None if init is None else density.pack(init).numpy()
        started = time.process_time()
        chain = run_chain(function, density.size, centre, seed, settings, None)
        rows = chain.draws[:: PILOT_SAMPLES // PILOT_ROWS]
        hints = density.estimate_hints(rows, names)
        self.pilot_seconds = time.process_time() - started
        return hints

    def _gather(
        self, pool: Executor, tasks: Sequence[Callable[[Report | None], Chain]]
    ) -> list[Chain]:
        per_chain = self.settings.num_warmup + self.settings.num_samples
        hidden = None if self.progress_bar is None else not self.progress_bar
        with (
            tempfile.TemporaryDirectory() as folder,
            tqdm(total=per_chain * len(tasks), disable=hidden, unit="draw", desc="NUTS") as bar,
        ):
            if isinstance(pool, SerialExecutor):
                return [
                    pool.submit(task, _Advance(bar, index * per_chain)).result()
                    for index, task in enumerate(tasks)
                ]
            notes = [ProgressNote(Path(folder) / str(index)) for index in range(len(tasks))]
            futures = [
                pool.submit(task, None if bar.disable else note)
                for task, note in zip(tasks, notes, strict=True)
            ]
            _watch(futures, notes, bar, per_chain)
            return [future.result() for future in futures]


class _Advance:
    """Moves a bar from the process that shows it."""

    def __init__(self, bar: "tqdm[Any]", offset: int) -> None:
        self.bar, self.offset = bar, offset

    def __call__(self, done: int) -> None:
        self.bar.update(self.offset + done - self.bar.n)


def _watch(
    futures: list[Future[Chain]], notes: list[ProgressNote], bar: "tqdm[Any]", per_chain: int
) -> None:
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, NOTE_SECONDS, return_when=FIRST_COMPLETED)
        for future in finished:
            future.result()  # a chain that failed ends the others
        done = sum(
            per_chain if future.done() else note.read()
            for future, note in zip(futures, notes, strict=True)
        )
        bar.update(done - bar.n)


@contextlib.contextmanager
def _opened(
    executor: Executor | str | None, function: Compiled | ValueAndGradient, num_tasks: int
) -> Iterator[Executor]:
    """Give the executor to use, and close it if it was made here."""
    if not isinstance(function, Compiled):
        yield SerialExecutor()
    elif isinstance(executor, Executor):
        yield executor
    else:
        pool = make_executor(executor, num_tasks)
        try:
            yield pool
        except BaseException:
            if isinstance(pool, Processes):
                pool.kill()
            raise
        finally:
            pool.shutdown()
