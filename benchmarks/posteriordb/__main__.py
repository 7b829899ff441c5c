"""Reference posteriors: ``python -m benchmarks.posteriordb [--quick] [--only NAME ...]``.

Every posterior is sampled by `zoo.truth` and held against posteriordb's reference draws, then
fitted by the zoo's mean-field and full-rank guides to see how far SVI is. The folder of posteriordb
is named by the environment variable ``ZOO_POSTERIORDB``.

Prints the table and writes it to ``benchmarks/results/posteriordb.csv``; ends with an error if a
sampler disagrees with a reference.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.posteriordb import comparison, reference
from benchmarks.posteriordb.fits import FAMILIES, MAX_ROUNDS, fit
from benchmarks.posteriordb.models import POSTERIORS, Posterior
from benchmarks.speed import machine_line
from zoo.errors import ZooError
from zoo.truth.reference import truth

RESULTS = Path(__file__).parents[1] / "results"
QUICK_ROUNDS = 1
SAMPLES, QUICK_SAMPLES = 1000, 500
MAX_SECONDS = 600.0


def rows_of(posterior: Posterior, root: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Return the rows of one posterior: the sampler's, then one per guide."""
    data = reference.read_data(root, posterior.reference)
    args = posterior.arguments(data)
    expected = reference.read_draws(root, posterior.reference)
    wanted = comparison.moments(expected)

    def summarise(values: Any) -> comparison.Moments:
        named = comparison.scalars(posterior.report(values))
        return comparison.moments({name: named[name] for name in expected})

    found = truth(
        posterior.model,
        args,
        num_samples=QUICK_SAMPLES if quick else SAMPLES,
        accept=False,
        max_seconds=MAX_SECONDS,
        executor="serial",
        cache=False,
        progress_bar=False,
    )
    seconds = found.draws.warmup_seconds + found.draws.sampling_seconds
    common = {"posterior": posterior.name, "parameters": len(expected)}
    rows: list[dict[str, Any]] = [
        common
        | {"method": "nuts", "accepted": found.accepted}
        | comparison.agreement(summarise(found.quantities), wanted)
        | comparison.distance(summarise(found.quantities), wanted)
        | {"seconds": seconds}
    ]
    for family in FAMILIES:
        rounds = QUICK_ROUNDS if quick else MAX_ROUNDS
        fitted = fit(posterior.model, args, family, posterior.start(*args), max_rounds=rounds)
        rows.append(
            common
            | {"method": family}
            | comparison.distance(summarise(fitted.values), wanted)
            | {"elbo": fitted.elbo, "k-hat": fitted.khat}
            | {"converged": fitted.converged, "steps": fitted.steps, "seconds": fitted.seconds}
        )
    return rows


def chosen(only: Sequence[str] | None) -> list[Posterior]:
    """Return the posteriors with these names; all by default."""
    return [posterior for posterior in POSTERIORS if not only or posterior.name in only]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few draws and steps; no CSV")
    parser.add_argument("--only", nargs="+", choices=[p.name for p in POSTERIORS], metavar="NAME")
    arguments = parser.parse_args()
    try:
        root = reference.folder()
    except ZooError as error:
        sys.exit(f"error: {error}")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    table = pd.DataFrame()
    present = reference.names(root)
    for posterior in chosen(arguments.only):
        if posterior.reference not in present:
            print(f"not compared: {posterior.name} ({posterior.reference} is not in {root})")
            continue
        rows = rows_of(posterior, root, quick=arguments.quick)
        table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
        print(f"{posterior.name}: done", file=sys.stderr, flush=True)
    print(comparison.as_text(table))
    ported = {posterior.reference for posterior in POSTERIORS}
    for name in present:
        if name not in ported:
            print(f"not ported: {name} (no Pyro model in benchmarks/posteriordb/models.py)")
    print(machine_line())
    if not arguments.quick and not arguments.only:
        table["machine"] = machine_line()
        table.round(4).to_csv(RESULTS / "posteriordb.csv", index=False)
    wrong = table.loc[table["agrees"] == False, "posterior"]  # noqa: E712  (other rows have none)
    if len(wrong):
        sys.exit(f"error: draws disagree with the reference: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
