"""Reference posteriors by NUTS, accepted by published criteria or rejected with reasons.

Draws are accepted as a reference if, for every reported quantity, the rank-normalised R-hat
is below 1.01 and bulk and tail effective sample sizes are at least 400 (Vehtari et al. 2021), if no
transition after warm-up diverged, and if E-BFMI is above 0.3 in every chain (Betancourt 2016).
Otherwise sampling is repeated with more draws or a higher acceptance target before it is rejected.
"""

import hashlib
import importlib.metadata
import json
import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import pandas as pd
import platformdirs
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.diagnostics.reading import labels
from zoo.diagnostics.sampling import MAX_RHAT, MIN_BFMI, MIN_ESS
from zoo.errors import ConfigError, StoreError, TruthError
from zoo.fit.schema import read_tree, sampling_tree, write_tree
from zoo.infer.nuts.chain import Engine
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.sampler import Draws, fingerprint, sample_nuts
from zoo.infer.recording import CANNOT

Values = Mapping[str, NDArray[Any]]
#: Maps draws by site, of shape ``(chains, draws, ...)``, to the reported quantities.
Quantities = Callable[[Values], Values]

#: Criteria of every element of a quantity: statistic, condition, limit. NaN meets none.
CRITERIA = (
    ("rhat", operator.lt, MAX_RHAT),
    ("ess_bulk", operator.ge, MIN_ESS),
    ("ess_tail", operator.ge, MIN_ESS),
)
#: Acceptance targets tried in turn while transitions diverge.
CAREFUL_TARGETS = (0.95, 0.99)
#: Largest number of attempts with more draws, and largest factor of their number.
MAX_LONGER = 3
MAX_GROWTH = 8
#: Environment variable with the cache directory.
CACHE_VARIABLE = "ZOO_CACHE"
#: Fields of the draws that are attributes of the tree.
SECONDS = ("warmup_seconds", "sampling_seconds", "compile_seconds")
#: Packages on which the draws depend.
PACKAGES = ("torch", "pyro-ppl", "nutpie")
#: Largest number of elements of a quantity named in a message, the worst first.
MAX_NAMED = 5


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
        Reasons for rejection; empty if the truth is accepted.
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

    @property
    def accepted(self) -> bool:
        """Whether all criteria are met."""
        return not self.reasons

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
                recipe=json.loads(tree.attrs["recipe"]),
                **{name: float(tree.attrs[name]) for name in SECONDS},
            )
            key = str(tree.attrs["key"])
        except (KeyError, ValueError) as error:
            raise StoreError(f"{str(path)!r} does not hold a truth: {error}") from None
        return judge(draws, quantities, key=key)


def judge(draws: Draws, quantities: Quantities | None = None, *, key: str = "") -> Truth:
    """Check draws against the criteria; by default every site is a reported quantity."""
    reported = dict(draws.values if quantities is None else quantities(draws.values))
    summary = _summarise(reported)
    reasons = (*_sampler_reasons(draws.stats), *_quantity_reasons(summary))
    return Truth(draws, reported, reasons, summary, key)


def _summarise(reported: Values) -> xarray.Dataset:
    posterior = sampling_tree(reported, {}, {})["posterior"].to_dataset()
    dims = ("chain", "draw")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constant elements, which are not checked
        parts = {
            "mean": posterior.mean(dims),
            "sd": posterior.std(dims, ddof=1),
            "mcse_mean": arviz_stats.mcse(posterior, method="mean"),
            "mcse_sd": arviz_stats.mcse(posterior, method="sd"),
            "rhat": arviz_stats.rhat(posterior, method="rank"),
            "ess_bulk": arviz_stats.ess(posterior, method="bulk"),
            "ess_tail": arviz_stats.ess(posterior, method="tail"),
        }
    joined: xarray.Dataset = xarray.concat(
        list(parts.values()), dim=xarray.DataArray(list(parts), dims="statistic", name="statistic")
    )
    return joined


def _sampler_reasons(stats: Values) -> list[str]:
    reasons = []
    divergences = int(stats["diverging"].sum())
    if divergences:
        reasons.append(f"{divergences} of {stats['diverging'].size} transitions diverged (limit 0)")
    if np.isnan(stats["energy"]).all():  # not reported by this engine
        return reasons
    tree = sampling_tree({}, {"energy": stats["energy"]}, {})
    lowest = float(np.min(arviz_stats.bfmi(tree)["energy"].values))
    if not lowest > MIN_BFMI:
        reasons.append(f"E-BFMI is {lowest:.2f} in one chain (limit {MIN_BFMI})")
    return reasons


def _quantity_reasons(summary: xarray.Dataset) -> list[str]:
    reasons = []
    for name in summary.data_vars:
        table = summary_table(summary[[name]])
        table = table[table["sd"] > 0]  # without constants, as the diagonal of a correlation matrix
        for statistic, meets, limit in CRITERIA:
            bad = table.loc[~meets(table[statistic], limit), statistic]
            if len(bad):
                worst = bad.sort_values(ascending=meets is operator.ge)[:MAX_NAMED]
                named = ", ".join(f"{label} {value:.4g}" for label, value in worst.items())
                more = f" and {len(bad) - len(worst)} more" if len(bad) > len(worst) else ""
                reasons.append(f"{statistic} of {named}{more} (limit {limit})")
    return reasons


def summary_table(summary: xarray.Dataset) -> pd.DataFrame:
    """Return the statistics with one row per element of the quantities."""
    statistics = summary["statistic"].to_numpy().tolist()
    rows: dict[str, NDArray[Any]] = {}
    for array in summary.data_vars.values():
        elements = array.to_numpy().reshape(len(statistics), -1).T
        rows |= zip(labels(array[0]), elements, strict=True)
    return pd.DataFrame.from_dict(rows, orient="index", columns=statistics)


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
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    reparameterise: bool = True,
    seed: int = 0,
    engine: Engine = "nutpie",
    executor: Executor | str | None = None,
    progress_bar: bool | None = None,
    init: Mapping[str, Any] | None = None,
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
    executor, progress_bar, init
        See `zoo.infer.nuts.sampler.sample_nuts`.
    cache
        Cache directory; True for the value of ``ZOO_CACHE`` or the user's cache directory; False
        for no cache.

    Raises
    ------
    TruthError
        If the criteria are still not met at the end.
    ZooError
        If the model cannot be sampled.
    """
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
        )
        found = _escalate(sample, options, quantities, key)
        if path is not None and found.accepted:
            path.parent.mkdir(parents=True, exist_ok=True)
            found.save(path)
    if accept and not found.accepted:
        raise TruthError(
            f"the draws are not accepted as a truth: {'; '.join(found.reasons)}. Reparameterise "
            "the model, report identified quantities only (quantities=), or use the draws as they "
            "are (accept=False)."
        )
    return found


def _escalate(
    sample: Callable[..., Draws], options: dict[str, Any], quantities: Quantities | None, key: str
) -> Truth:
    """Sample, with higher acceptance targets after divergences and more draws if needed."""
    options = dict(options)
    targets = [target for target in CAREFUL_TARGETS if target > options["target_accept"]]
    longer = 0
    while True:
        found = judge(sample(**options), quantities, key=key)
        careless = bool(_sampler_reasons(found.draws.stats))
        if careless and targets:
            options |= {"target_accept": targets.pop(0), "num_warmup": 2 * options["num_warmup"]}
        elif not careless and not found.accepted and longer < MAX_LONGER:
            longer += 1
            options["num_samples"] *= _growth(found.summary)
        else:
            return found


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
