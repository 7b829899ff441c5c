"""Fits that end by themselves: ``python -m benchmarks.convergence PART [--only NAME ...]``.

``uci``
    Default fits on six UCI sets, two splits each: how many converge within the default budget.
``longer``
    Three of these sets and three seeds: the ELBO of a default fit beside that of a run ten times
    longer with a fixed number of steps, and of shorter fixed runs. The best fixed choice is the
    smallest of `FIXED` whose ELBO is within 0.01 nats per row of the best of all runs with the same
    data, method and seed.
``posteriordb``
    The models of posteriordb with 100 seeds: how many fits say that they have converged although
    their ELBO is further than the tolerance below the best of all seeds.

Every fit is a row of ``benchmarks/results/convergence_PART.csv``. Fits that have a row are not
repeated, so an interrupted benchmark continues. ``ZOO_UCI`` names the folder of the UCI sets,
``ZOO_POSTERIORDB`` that of posteriordb. One thread; ELBOs of fits that are compared are estimated
with the same random numbers.
"""

import argparse
import datetime
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.posteriordb import reference
from benchmarks.posteriordb.models import POSTERIORS, Posterior
from zoo.data import Dataset, from_arrays
from zoo.fit.any_model import ModelConfig, prepare_model
from zoo.fit.config import make_config, validated_config
from zoo.fit.prepare import prepare
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.monitor import Monitor
from zoo.infer.svi.tolerance import NATS_PER_ROW

RESULTS = Path(__file__).parent / "results"
SETS = {
    "boston": "bostonHousing",
    "wine": "wine-quality-red",
    "power": "power-plant",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "protein": "protein-tertiary-structure",
}
METHODS = ("mean_field", "group_horseshoe", "sparse_vd", "laplace")
SPLITS = 2
LONGER_SETS, LONGER_METHODS, LONGER_SEEDS = ("boston", "wine", "power"), METHODS[:2], 3
#: Lengths of fixed runs, and the factor of the longer one.
FIXED = tuple(1000 * 2**k for k in range(8))
LONGER = 10
POSTERIORDB_SEEDS = 100
#: Estimates behind the ELBO of a row.
ELBO_VALUES = 512

Task = tuple[dict[str, Any], Callable[[], SVI]]


@dataclass(frozen=True)
class Table:
    """The rows of one part, in a file that is complete after every row."""

    path: Path

    def rows(self) -> pd.DataFrame:
        """Return all rows so far."""
        return pd.read_csv(self.path) if self.path.exists() else pd.DataFrame()

    def find(self, key: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows with these values."""
        rows = self.rows()
        if rows.empty:
            return rows
        same = [rows[name].astype(str) == str(value) for name, value in key.items()]
        return rows[np.logical_and.reduce(same)]

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        rows = pd.concat([self.rows(), pd.DataFrame([row])], ignore_index=True)
        temporary = self.path.with_suffix(".tmp")
        rows.to_csv(temporary, index=False)
        temporary.replace(self.path)


def uci(name: str, split: int) -> Dataset:
    """Return a UCI set with inputs and target standardised by the training rows of a split."""
    folder = os.environ.get("ZOO_UCI")
    if not folder:
        sys.exit("error: set ZOO_UCI to the folder of the UCI sets")
    file = np.load(Path(folder) / f"{SETS[name]}.npz")
    X, y, test = file["X"], file["y"], file["test_idx"][split].astype(int)
    train = np.setdiff1d(np.arange(len(y)), test)
    location, scale = X[train].mean(0), X[train].std(0)
    X = ((X - location) / np.where(scale > 1e-12, scale, 1.0)).astype(np.float32)
    y = ((y - y[train].mean()) / y[train].std()).astype(np.float32)
    return from_arrays(X[train], y[train], X_test=X[test], y_test=y[test], task="regression")


def network(name: str, method: str, *, split: int, seed: int, num_steps: int | None = None) -> SVI:
    """Return the training loop of a default fit."""
    config = make_config(method=method, seed=seed, num_steps=num_steps, num_threads=1)
    prepared = prepare(config, dataset=uci(name, split))
    prepared.svi.choose_mode()
    return prepared.svi


def any_model(posterior: Posterior, root: Path, *, seed: int) -> SVI:
    """Return the training loop of a default fit of a Pyro model."""
    args = posterior.arguments(reference.read_data(root, posterior.reference))
    config = validated_config(ModelConfig, {"model": posterior.name, "seed": seed})
    return prepare_model(posterior.model, config, guide="mean_field", args=args)[1]


def measured(svi: SVI) -> dict[str, Any]:
    """Train, and return what a row says about the run."""
    started = time.process_time()
    svi.run(progress_bar=False)
    seconds = time.process_time() - started
    assert svi.ending is not None
    ending = svi.ending
    # The same random numbers whatever the seed of the run.
    batch_size = svi.recipe.batch_size
    monitor = Monitor(svi.objective, svi._rows, batch_size=batch_size, seed=0)
    elbos = monitor.elbos(ELBO_VALUES)
    return {
        "rows": monitor.num_data,
        "reason": ending.reason,
        "steps": ending.steps,
        "rounds": ending.rounds,
        "tolerance": ending.tolerance,
        "remaining": ending.remaining,
        "sds": ending.sds,
        "averaged": ending.averaged,
        "elbo": elbos.mean(),
        "elbo_error": elbos.std(ddof=1) / math.sqrt(len(elbos)),
        "cpu_seconds": seconds,
        "command": f"python -m benchmarks.convergence {' '.join(sys.argv[1:])}",
        "date": datetime.date.today().isoformat(),
    }


def uci_tasks(only: list[str]) -> Iterator[Task]:
    for split in range(SPLITS):
        for name in SETS:
            for method in METHODS:
                if not only or name in only or method in only:
                    key = {"data": name, "method": method, "split": split, "seed": 0}
                    yield key, partial(network, name, method, split=split, seed=0)


def longer_tasks(only: list[str], table: Table) -> Iterator[Task]:
    for seed in range(LONGER_SEEDS):
        for name in LONGER_SETS:
            for method in LONGER_METHODS:
                if only and name not in only and method not in only:
                    continue
                key = {"data": name, "method": method, "split": 0, "seed": seed}
                fit = partial(network, name, method, split=0, seed=seed)
                yield key | {"kind": "default"}, fit
                found = table.find(key | {"kind": "default"})
                steps = int(found["steps"].iloc[0])
                yield key | {"kind": "longer"}, partial(fit, num_steps=LONGER * steps)
                for number in FIXED:
                    if number < 2 * steps:
                        yield key | {"kind": f"fixed {number}"}, partial(fit, num_steps=number)


def posteriordb_tasks(only: list[str], seeds: int) -> Iterator[Task]:
    root = reference.folder()
    for seed in range(seeds):
        for posterior in POSTERIORS:
            if not only or posterior.name in only:
                key = {"posterior": posterior.name, "seed": seed}
                yield key, partial(any_model, posterior, root, seed=seed)


def uci_summary(rows: pd.DataFrame) -> str:
    by = rows.assign(converged=rows["reason"] == "converged").groupby("method")
    text = by["converged"].agg(["sum", "count"]).to_string()
    share = (rows["reason"] == "converged").mean()
    return f"{text}\nconverged within the default budget: {share:.1%} of {len(rows)}"


def longer_summary(rows: pd.DataFrame) -> str:
    found = []
    for key, group in rows.groupby(["data", "method", "seed"]):
        per_row = group.set_index("kind")["elbo"] / group["rows"].iloc[0]
        steps = group.set_index("kind")["steps"]
        fixed = [k for k in per_row.index if k.startswith("fixed")]
        near = [k for k in fixed if per_row[k] >= per_row.max() - NATS_PER_ROW]
        found.append(
            dict(zip(("data", "method", "seed"), key, strict=True))
            | {"steps": steps["default"]}
            | {"below the longer run": per_row.get("longer", math.nan) - per_row["default"]}
            | {"below the best": per_row.max() - per_row["default"]}
            | {"best fixed": min((steps[k] for k in near), default=math.nan)}
        )
    table = pd.DataFrame(found)
    table["ratio"] = table["steps"] / table["best fixed"]
    known = table["below the longer run"].dropna()
    return (
        f"{table.to_string(float_format=lambda v: f'{v:.4g}')}\n"
        f"within 0.01 nats per row of the longer run: {(known <= NATS_PER_ROW).mean():.1%} of "
        f"{len(known)}; at most twice the best fixed steps: {(table['ratio'] <= 2).mean():.1%}; "
        f"median ratio {table['ratio'].median():.2f}"
    )


def posteriordb_summary(rows: pd.DataFrame) -> str:
    best = rows.groupby("posterior")["elbo"].transform("max")
    said = rows["reason"] == "converged"
    wrong = said & (best - rows["elbo"] > rows["tolerance"])
    table = rows.assign(converged=said, false_stop=wrong, below=best - rows["elbo"])
    text = table.groupby("posterior").agg(
        seeds=("seed", "count"),
        converged=("converged", "sum"),
        false_stops=("false_stop", "sum"),
        tolerance=("tolerance", "first"),
        median_below=("below", "median"),
        largest_below=("below", "max"),
        median_steps=("steps", "median"),
    )
    return f"{text.to_string()}\nfalse stops: {wrong.sum()} of {said.sum()} ({wrong.mean():.2%})"


SUMMARIES = {"uci": uci_summary, "longer": longer_summary, "posteriordb": posteriordb_summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=SUMMARIES)
    parser.add_argument("--only", nargs="+", default=[], help="sets, methods or posteriors")
    parser.add_argument("--seeds", type=int, default=POSTERIORDB_SEEDS, help="of posteriordb")
    parser.add_argument("--summary", action="store_true", help="only print what is known")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = Table(RESULTS / f"convergence_{arguments.part}.csv")
    if arguments.part == "posteriordb":
        torch.set_default_dtype(torch.float64)
    tasks = {
        "uci": lambda: uci_tasks(arguments.only),
        "longer": lambda: longer_tasks(arguments.only, table),
        "posteriordb": lambda: posteriordb_tasks(arguments.only, arguments.seeds),
    }[arguments.part]()
    for key, build in () if arguments.summary else tasks:
        if table.find(key).empty:
            table.add(key | measured(build()))
            print(table.rows().iloc[-1].to_dict(), flush=True)
    print(SUMMARIES[arguments.part](table.rows()))


if __name__ == "__main__":
    main()
