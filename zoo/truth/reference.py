"""Reference posteriors by NUTS: accepted by published criteria, refused, or out of budget.

Chains start in the modes that paths from dispersed points find. Draws that miss a criterion of
`zoo.truth.criteria` are sampled again with more draws or a higher acceptance target, as long as the
budget allows. Modes between which no chain moved are refused at once, with their weights.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.diagnostics.sampling import MIN_ESS
from zoo.errors import ConfigError, StoreError, TruthError
from zoo.fit.schema import read_tree, sampling_tree, write_tree
from zoo.infer.nuts.budget import Budget, BudgetError
from zoo.infer.nuts.chain import Engine
from zoo.infer.nuts.compiling import fingerprint
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.sampler import Draws, sample_nuts
from zoo.infer.recording import CANNOT
from zoo.truth.criteria import (
    Quantities,
    Values,
    quantity_reasons,
    sampler_reasons,
    summarise,
)
from zoo.truth.modes import Mode, are_apart, columns, describe, find_modes, kept_chains

#: Acceptance targets tried in turn while transitions diverge.
CAREFUL_TARGETS = (0.95, 0.99)
#: How much longer a draw takes at the next target.
CAREFUL_COST = 2
#: Largest number of attempts with more draws, and largest factor of their number.
MAX_LONGER = 2
MAX_GROWTH = 8
#: Default budget in seconds.
MAX_SECONDS = 120.0
#: Attempts are made if they may take this many times the seconds that are left.
OPTIMISM = 1.2
#: Environment variable with the cache directory.
CACHE_VARIABLE = "ZOO_CACHE"
#: Fields of the draws that are attributes of the tree.
SECONDS = ("warmup_seconds", "sampling_seconds", "compile_seconds")
#: Packages on which the draws depend.
PACKAGES = ("torch", "pyro-ppl", "nutpie")


@dataclass(frozen=True)
class Truth:
    """A reference posterior.

    Attributes
    ----------
    draws
        Values by site, sampler statistics, and times.
    quantities
        The reported quantities by name, shape ``(chains, draws, ...)``.
    reasons
        Why the draws are not accepted; empty if they are.
    is_out_of_budget
        Whether more seconds might have helped.
    modes
        Modes between which no chain moved, the heaviest first; empty if there is one.
    summary
        Per quantity (dimension ``statistic``): mean, sd, their Monte Carlo errors, R-hat, bulk and
        tail ESS.
    key
        Hash of model, data, recipe and versions; empty if the model has none.
    """

    draws: Draws
    quantities: dict[str, NDArray[Any]]
    reasons: tuple[str, ...]
    summary: xarray.Dataset
    key: str = ""
    is_out_of_budget: bool = False
    modes: tuple[Mode, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether all criteria are met."""
        return not self.reasons

    @property
    def status(self) -> str:
        """``accepted``, ``refused`` or ``out of budget``."""
        if self.accepted:
            return "accepted"
        return "out of budget" if self.is_out_of_budget else "refused"

    @property
    def recipe(self) -> dict[str, Any]:
        """Settings of the sampler."""
        return self.draws.recipe

    def tree(self, log_joint: NDArray[Any] | None = None) -> xarray.DataTree:
        """Return draws and statistics, and the log joint if given, in ArviZ's schema."""
        stats = self.draws.stats if log_joint is None else self.draws.stats | {"lp": log_joint}
        attributes = {
            "key": self.key,
            "accepted": int(self.accepted),
            "status": self.status,
            "reasons": json.dumps(self.reasons),
            "recipe": json.dumps(self.recipe),
            **{name: getattr(self.draws, name) for name in SECONDS},
        }
        return sampling_tree(self.draws.values, stats, attributes)

    def save(self, path: str | Path) -> None:
        """Write the draws to a netCDF file."""
        write_tree(self.tree(), Path(path))

    @classmethod
    def load(cls, path: str | Path, *, quantities: Quantities | None = None) -> "Truth":
        """Read a file written by `save`, and check the criteria again.

        Raises
        ------
        StoreError
            If the file is missing or damaged, or does not hold a truth.
        """
        tree = read_tree(path)
        try:
            draws = Draws(
                {str(k): v.values for k, v in tree["posterior"].data_vars.items()},
                {str(k): v.values for k, v in tree["sample_stats"].data_vars.items()},
                float(tree.attrs["warmup_seconds"]),
                float(tree.attrs["sampling_seconds"]),
                float(tree.attrs["compile_seconds"]),
                json.loads(tree.attrs["recipe"]),
            )
            key = str(tree.attrs["key"])
        except (KeyError, ValueError) as error:
            raise StoreError(f"{str(path)!r} does not hold a truth: {error}") from None
        return judge(draws, quantities, key=key)


def judge(draws: Draws, quantities: Quantities | None = None, *, key: str = "") -> Truth:
    """Check draws against the criteria; by default every site is a reported quantity.

    Chains in modes that hold less than a thousandth of the mass are left out.
    """
    reported = dict(draws.values if quantities is None else quantities(draws.values))
    names, values = columns(reported)
    reasons: list[str] = []
    modes: list[Mode] = []
    if draws.regions is not None and are_apart(values).any():
        modes = find_modes(names, values, draws.regions())
    if len(modes) > 1:
        kept, said = kept_chains(modes), describe(modes, len(values))
        if kept is None:
            reasons = [said]
        else:
            draws, modes = _subset(draws, kept, said), []
            reported = {name: value[list(kept)] for name, value in reported.items()}
    summary = summarise(reported)
    reasons += [*sampler_reasons(draws.stats), *quantity_reasons(summary)]
    several = tuple(modes) if len(modes) > 1 else ()
    return Truth(draws, reported, tuple(reasons), summary, key, modes=several)


def _subset(draws: Draws, chains: Sequence[int], note: str) -> Draws:
    rows = list(chains)
    return replace(
        draws,
        values={name: value[rows] for name, value in draws.values.items()},
        stats={name: value[rows] for name, value in draws.stats.items()},
        recipe=draws.recipe | {"num_chains": len(rows), "left_out": note},
        regions=None,
    )


def joined_chains(values: Values) -> dict[str, Tensor]:
    """Return draws by site as tensors, without the dimension of chains."""
    return {k: torch.as_tensor(np.asarray(v)).flatten(0, 1) for k, v in values.items()}


def truth(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    quantities: Quantities | None = None,
    accept: bool = True,
    num_chains: int = 8,
    num_warmup: int = 500,
    num_samples: int = 500,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    reparameterise: bool = True,
    seed: int = 0,
    engine: Engine = "nutpie",
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
    init: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, Any]] = (),
    max_seconds: float = MAX_SECONDS,
    cache: str | Path | bool = True,
) -> Truth:
    """Return a reference posterior of any Pyro model with continuous latent sites.

    Parameters
    ----------
    model, args, kwargs
        The model and its arguments, including the observations.
    quantities
        Function from draws by site to the reported quantities, which are checked; by default the
        sites. Weights of a network are not identified, but its predictions are.
    accept
        Whether to raise an error for draws that do not meet the criteria. Otherwise they are
        returned with ``reasons``.
    num_chains, num_warmup, num_samples, target_accept, max_tree_depth, reparameterise, seed, engine
        Initial settings, see `zoo.infer.nuts.sampler.sample_nuts`; they are raised if needed.
    executor, progress_bar, init, points
        See `zoo.infer.nuts.sampler.sample_nuts`. Without ``init`` the starts are dispersed.
    max_seconds
        Wall-clock seconds for everything: recording, compilation, warm-up and all attempts. If they
        do not suffice, the answer is "out of budget", with what was reached and an estimate of what
        would be needed. Only recording and compiling cannot be interrupted.
    cache
        Cache directory; True for the value of ``ZOO_CACHE`` or the user's cache directory; False
        for no cache.

    Raises
    ------
    BudgetError
        A `TruthError`: out of budget before there were draws.
    TruthError
        If the criteria are still not met at the end.
    ZooError
        If the model cannot be sampled.
    """
    budget = Budget(max_seconds)
    if num_chains < 2:
        raise ConfigError(f"a truth needs at least 2 chains. Got num_chains={num_chains}.")
    options: dict[str, Any] = {
        "num_chains": num_chains,
        "num_warmup": num_warmup,
        "num_samples": num_samples,
        "target_accept": target_accept,
        "max_tree_depth": max_tree_depth,
        "reparameterise": reparameterise,
        "seed": seed,
        "engine": engine,
    }
    key = _key(LogDensity(model, args, kwargs), options, init)
    path = _cache_path(cache, key)
    found = _read_cache(path, key, quantities)
    if found is None:
        sample = partial(
            sample_nuts,
            model,
            args,
            kwargs,
            executor=executor,
            progress_bar=progress_bar,
            init=init,
            points=points,
            dispersed=True,
        )
        found = _escalate(sample, options, quantities, key, budget)
        if path is not None and found.accepted:
            path.parent.mkdir(parents=True, exist_ok=True)
            found.save(path)
    if accept and not found.accepted:
        raise _refusal(found)
    return found


def _refusal(found: Truth) -> TruthError:
    said = "; ".join(found.reasons)
    if found.is_out_of_budget:
        return BudgetError(f"{said}. Raise max_seconds, or use the draws as they are.")
    return TruthError(
        f"the draws are not accepted as a truth: {said}. Reparameterise the model, report "
        "identified quantities only (quantities=), or use the draws as they are (accept=False)."
    )


def _escalate(
    sample: Callable[..., Draws],
    options: dict[str, Any],
    quantities: Quantities | None,
    key: str,
    budget: Budget,
) -> Truth:
    """Sample, with higher acceptance targets after divergences and more draws if needed."""
    options = dict(options)
    targets = [target for target in CAREFUL_TARGETS if target > options["target_accept"]]
    longer = 0
    while True:
        before = budget.spent
        found = judge(sample(**options, max_seconds=budget.left), quantities, key=key)
        careless = bool(sampler_reasons(found.draws.stats))
        if found.accepted or found.modes:
            return found
        if careless and targets:
            factor = 2 * CAREFUL_COST
            options |= {"target_accept": targets.pop(0), "num_warmup": 2 * options["num_warmup"]}
        elif not careless and longer < MAX_LONGER:
            longer += 1
            factor = _growth(found.summary)
            options["num_samples"] *= factor
        elif found.draws.is_complete:
            return found
        else:
            factor = 1
        needed = factor * (budget.spent - before - found.draws.compile_seconds)
        if not found.draws.is_complete or needed > OPTIMISM * budget.left:
            return _out_of_budget(found, budget, needed)


def _out_of_budget(found: Truth, budget: Budget, needed: float) -> Truth:
    chains, draws = found.draws.stats["diverging"].shape
    note = (
        f"out of budget: {budget.spent:.0f} of {budget.seconds:.0f} s gave {chains} chains of "
        f"{draws} draws, and about {needed:.0f} s more would be needed"
    )
    return replace(found, reasons=(note, *found.reasons), is_out_of_budget=True)


def _growth(summary: xarray.Dataset) -> int:
    """Return the factor by which more draws are needed, with a margin."""
    sizes = summary.sel(statistic=["ess_bulk", "ess_tail"])
    smallest = min(float(np.nanmin(array.values)) for array in sizes.data_vars.values())
    return int(np.clip(np.ceil(1.5 * MIN_ESS / max(smallest, 1.0)), 2, MAX_GROWTH))


def _key(density: LogDensity, options: Mapping[str, Any], init: Mapping[str, Any] | None) -> str:
    try:
        mathematics = fingerprint(density, density.capture())
    except CANNOT:
        return ""
    start = {} if init is None else {k: np.asarray(v).tolist() for k, v in init.items()}
    versions = {name: _version(name) for name in PACKAGES}
    text = json.dumps([mathematics, dict(options), start, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _cache_path(cache: str | Path | bool, key: str) -> Path | None:
    if cache is False or not key:
        return None
    if cache is True:
        cache = os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("pyro-zoo")
    return Path(cache) / "truth" / f"{key}.nc"


def _read_cache(path: Path | None, key: str, quantities: Quantities | None) -> Truth | None:
    """Return the cached truth if it is complete, has the right key, and is accepted."""
    if path is None or not path.is_file():
        return None
    try:
        found = Truth.load(path, quantities=quantities)
    except StoreError:
        return None
    return found if found.key == key and found.accepted else None
