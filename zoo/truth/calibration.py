"""Simulation-based calibration of a method on a problem, or of a guide of any Pyro model.

Parameters are drawn from the prior, data given the parameters, and the posterior is inferred from
the data. If the posterior is correct, the rank of the true value among the posterior draws is
uniform; the converse holds only on average over data sets (Talts et al. 2018, *Validating Bayesian
Inference Algorithms with Simulation-Based Calibration*).

Simulated data sets that are absurdly large are discarded. The decision depends on the data alone,
and the ranks of a correct posterior are uniform for every data set, so they are uniform for those
that are kept, too (Modrák et al. 2023, *Simulation-Based Calibration Checking for Bayesian
Computation*).
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from zoo.data import Dataset, from_arrays
from zoo.diagnostics import Finding, sbc_findings
from zoo.diagnostics.sbc import (
    RankTest,
    discarded_finding,
    failure_finding,
    point_finding,
    unranked_finding,
)
from zoo.errors import ConfigError
from zoo.fit.config import make_config
from zoo.fit.guides import GuideSource, guide_text
from zoo.infer.svi.loop import DivergedError
from zoo.infer.svi.schedule import child_seed
from zoo.infer.tasks.executor import check_executor
from zoo.infer.tasks.running import Report, run_tasks
from zoo.registry import get
from zoo.truth.kept_ranks import KeptRanks, make_folder, name_of
from zoo.truth.quantities import MAX_PARAMETERS, Quantities, Simulated
from zoo.truth.simulated_fits import SMALL_PROBLEM, Engine, NetworkSimulator, small_dataset
from zoo.truth.simulated_models import ModelSimulator

Array = NDArray[Any]

#: Posterior draws per simulation.
NUM_DRAWS = 99
#: Simulated data are discarded if they are larger than those of the data by this factor.
MAX_SCALE = 100.0
#: Attempts to simulate one data set that is not discarded.
MAX_ATTEMPTS = 200
#: Stream of random numbers of the simulated data.
DATA_STREAM = 5_000_000_029


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws.

    Attributes
    ----------
    ranks
        By quantity, one rank per simulation that could be fitted, between 0 and `num_draws`.
    num_draws
        Posterior draws per simulation.
    findings
        Findings of the uniformity tests.
    tests
        The tests, with the data for plots.
    num_failed
        Simulated data sets on which training diverged.
    num_discarded
        Simulated data sets that were too large to be fitted.
    points
        Parameters without a prior, whose values in the simulations come from a fit to the data.
    """

    ranks: dict[str, Array]
    num_draws: int
    findings: list[Finding]
    tests: dict[str, RankTest]
    num_failed: int = 0
    num_discarded: int = 0
    points: tuple[str, ...] = ()


def calibrate(
    method: str | Callable[..., Any],
    X: Any = None,
    y: Any = None,
    *,
    data: str | Dataset | None = None,
    net: str | Mapping[str, Any] | nn.Module | None = None,
    guide: GuideSource | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    engine: Engine = "svi",
    num_simulations: int = 100,
    max_scale: float = MAX_SCALE,
    seed: int = 0,
    executor: str | None = None,
    out: str | Path | None = None,
    progress_bar: bool | None = None,
    **settings: Any,
) -> Calibration:
    """Run simulation-based calibration.

    Inputs are those of the data; targets are simulated from prior and likelihood. Every simulated
    data set is fitted as `zoo.fit` would fit it. Parameters without a prior, such as a learned
    noise, have the values of a fit to the data.

    Parameters
    ----------
    method
        A method of the zoo, or a Pyro model; its prior must be proper.
    X, y, data, net, guide
        As for `zoo.fit`; by default a linear regression with 30 rows, three inputs and known noise.
    args, kwargs
        Arguments of a Pyro model. Its observed sites are simulated.
    engine
        ``svi`` tests the guide, ``nuts`` the model and the sampler.
    num_simulations
        Number of data sets.
    max_scale
        A simulated data set is discarded, and counted, if its largest number is larger than the
        largest one of the data by this factor.
    seed
        Seed of all random numbers.
    executor
        Where simulations run, see `zoo.infer.tasks.executor.make_executor`.
    out
        Directory that keeps the ranks of finished simulations: the same call continues one that was
        interrupted, or adds simulations.
    progress_bar
        Whether to show a progress bar; by default on a terminal.
    **settings
        Other settings of `zoo.fit`: ``priors``, ``likelihood``, ``options``, ``num_steps``, ...

    Examples
    --------
    >>> import zoo
    >>> found = zoo.calibrate("mean_field", num_simulations=10, num_steps=5, executor="serial")
    >>> len(found.ranks["log_likelihood"])
    10
    """
    if engine not in ("svi", "nuts"):
        raise ConfigError(f"unknown engine {engine!r}. Accepted: svi, nuts.")
    if num_simulations < 10:
        raise ConfigError(f"num_simulations must be at least 10. Got {num_simulations}.")
    if not max_scale > 0:
        raise ConfigError(f"max_scale must be positive. Got {max_scale}.")
    if executor is not None:
        check_executor(executor)
    how: dict[str, Any] = {"engine": engine, "progress_bar": progress_bar}
    settings = {"num_samples": NUM_DRAWS, "seed": seed} | settings
    simulator: NetworkSimulator | ModelSimulator
    if isinstance(method, str):
        if args or kwargs:
            raise ConfigError("args= and kwargs= are for Pyro models. Give data=, or X and y.")
        simulator = _network(method, X, y, data=data, net=net, guide=guide, how=how, **settings)
    else:
        if X is not None or data is not None or net is not None:
            raise ConfigError("a Pyro model takes its data as args= and kwargs=.")
        simulator = ModelSimulator(
            method, guide=guide, args=args, kwargs=kwargs, **how, settings=settings
        )
    seeds = [child_seed(simulator.fit.config.seed, index) for index in range(num_simulations)]
    drawn = [_acceptable(simulator, one, max_scale) for one in seeds]
    num_discarded = sum(discarded for _, discarded in drawn)
    tasks: list[Callable[..., Any]] = [
        partial(_ranks, simulator.fit, simulated, one)
        for (simulated, _), one in zip(drawn, seeds, strict=True)
    ]
    if out is not None:
        tasks = _kept(tasks, Path(out), simulator, [one for one, _ in drawn], seeds, engine)
    collected = run_tasks(
        tasks,
        _choose_executor(executor, tasks[0], simulator.device),
        length=1,
        unit="simulation",
        description="calibration",
        progress_bar=progress_bar,
    )
    return _judged(collected, simulator, num_discarded, max_scale)


def _kept(
    tasks: Sequence[Callable[..., Any]],
    folder: Path,
    simulator: NetworkSimulator | ModelSimulator,
    simulated: Sequence[Simulated],
    seeds: Sequence[int],
    engine: str,
) -> list[Callable[..., Any]]:
    """Return the same tasks, with results in files of a folder."""
    config = simulator.fit.config
    if config.guide is None:
        raise ConfigError("out= needs a guide with a name: files cannot tell guide objects apart.")
    settings = {"engine": engine, "config": config.model_dump(mode="json")}
    make_folder(folder)
    names = [name_of(settings, one, seed) for one, seed in zip(simulated, seeds, strict=True)]
    return [KeptRanks(folder / name, task) for name, task in zip(names, tasks, strict=True)]


def _network(
    method: str,
    X: Any,
    y: Any,
    *,
    data: str | Dataset | None,
    net: str | Mapping[str, Any] | nn.Module | None,
    guide: GuideSource | None,
    how: Mapping[str, Any],
    **settings: Any,
) -> NetworkSimulator:
    get(method)
    if (X is not None and data is not None) or (X is None) != (y is None):
        raise ConfigError("give either X and y, or data=.")
    is_small = X is None and data is None
    values = (SMALL_PROBLEM if is_small else {}) | settings
    if isinstance(data, str):
        values["data"] = data
    if net is not None:
        values["net"] = None if isinstance(net, nn.Module) else net
    if guide is not None:
        values["guide"] = guide_text(guide)
    config = make_config(method=method, **values)
    dataset = data if isinstance(data, Dataset) else None
    if is_small:
        dataset = small_dataset()
    elif X is not None:
        dataset = from_arrays(X, y, task=config.task)
    return NetworkSimulator(
        config,
        dataset=dataset,
        net=net if isinstance(net, nn.Module) else None,
        guide=None if isinstance(guide, str) else guide,
        **how,
    )


def _acceptable(
    simulator: NetworkSimulator | ModelSimulator, seed: int, max_scale: float
) -> tuple[Simulated, int]:
    """Return the first simulated data set that is not discarded, and the number before it."""
    limits = {
        name: max_scale * (float(np.abs(value).max()) or 1.0)
        for name, value in simulator.observed.items()
    }
    largest = 0.0
    for attempt in range(MAX_ATTEMPTS):
        simulated = simulator.simulate(child_seed(seed, DATA_STREAM + attempt))
        sizes = {n: float(np.abs(v).max()) for n, v in simulator.sizes(simulated).items()}
        if all(size <= limits[name] for name, size in sizes.items()):
            return simulated, attempt
        largest = max(largest, *sizes.values())
    raise ConfigError(
        f"{MAX_ATTEMPTS} data sets in a row that were simulated from the prior have numbers more "
        f"than {max_scale:g} times as large as the data (up to {largest:.3g}). Choose a narrower "
        "prior, or a larger max_scale."
    )


def _ranks(
    fit: Callable[[Simulated, int], Quantities],
    simulated: Simulated,
    seed: int,
    report: Report | None = None,
) -> dict[str, int] | None:
    """Infer, and return the rank of every true value; None if training diverged."""
    try:
        found = fit(simulated, seed)
    except (DivergedError, LinAlgError):
        found = {}
    if report is not None:
        report(1)
    if not found or not all(torch.isfinite(draws).all() for _, draws in found.values()):
        return None
    rng = np.random.default_rng(seed)
    return {name: rank_of(*pair, rng) for name, pair in found.items()}


def rank_of(true: Tensor, draws: Tensor, rng: np.random.Generator) -> int:
    """Return the number of draws below the true value; those equal to it are split at random."""
    return int((draws < true).sum()) + int(rng.integers(0, int((draws == true).sum()) + 1))


def _judged(
    collected: Sequence[dict[str, int] | None],
    simulator: NetworkSimulator | ModelSimulator,
    num_discarded: int,
    max_scale: float,
) -> Calibration:
    fitted = [found for found in collected if found is not None]
    num_failed = len(collected) - len(fitted)
    ranks = {name: np.array([found[name] for found in fitted]) for name in (fitted or [{}])[0]}
    findings, tests = sbc_findings(ranks, simulator.num_draws)
    findings.append(failure_finding(num_failed, len(collected)))
    if num_discarded:
        findings.append(discarded_finding(num_discarded, len(collected), max_scale))
    if simulator.num_parameters > MAX_PARAMETERS:
        findings.append(unranked_finding(simulator.num_parameters, MAX_PARAMETERS))
    if simulator.points:
        findings.append(point_finding(simulator.points))
    return Calibration(
        ranks,
        simulator.num_draws,
        findings,
        tests,
        num_failed,
        num_discarded,
        tuple(simulator.points),
    )


def _choose_executor(
    executor: str | None, task: Callable[..., Any], device: torch.device
) -> str | None:
    """Return where simulations run; by default in processes if they can be sent to them."""
    try:
        # What is defined in the running script is pickled by name, and not found elsewhere.
        sendable = b"__main__" not in pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        sendable = False
    if executor is not None and executor.startswith("processes") and not sendable:
        raise ConfigError(
            f"the executor {executor!r} cannot be used: the model, the network or the guide is "
            "defined in the running script, which other processes do not import. Move it to a "
            "module, or use the executor 'serial'."
        )
    if executor is None and (not sendable or device.type != "cpu"):
        return "serial"
    return executor
