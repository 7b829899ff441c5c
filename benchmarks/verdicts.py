"""Does the verdict separate good fits from bad ones? A confusion matrix over kinds of fits.

``python -m benchmarks.verdicts [--seeds 10] [--part tune|kept] [--kinds GLOB] [--jobs 1]``

Every kind of `benchmarks.verdict_kinds` has a label for each use of a fit (predict, intervals,
parameters, compare, compress) and makes data and arguments of `zoo.fit` from a seed; nothing else
is set, and there is no truth. A label is good, bad, or unknown: the fit may be good, but its tree
has lost what would show it. A third of the kinds, the part ``kept``, is left out while checks are
tuned. Rows are appended to ``benchmarks/results/verdicts_tune.csv`` and ``verdicts_kept.csv``; one
that is there is not run again, unless with ``--fresh``.

``--table`` prints the matrices, their rates with Wilson's 95 % intervals beside the targets, and
the counts by kind; those of the part ``kept`` only if it is named. A fit that raises an error
counts as a failure. ``--list`` prints the kinds. ``--verify`` defends the labels: it fits the cases
and measures them with what only the generator of the data knows, see
`benchmarks.verdict_kinds.measure`, and writes ``verdicts_labels_tune.csv`` or ``_kept.csv``.
"""

import argparse
import fnmatch
from pathlib import Path

import pandas as pd

from benchmarks.verdict_kinds import kinds
from benchmarks.verdict_kinds.running import PARTS, pending, read, run
from benchmarks.verdict_kinds.tables import by_kind, confusion, rates

RESULTS = Path(__file__).parent / "results"


def path_of(part: str) -> Path:
    return RESULTS / f"verdicts_{part}.csv"


def wanted(part: str, pattern: str, seeds: int) -> list[tuple[str, int]]:
    """Return kinds and seeds; the first seeds of all kinds come first."""
    names = [name for name in kinds(part) if fnmatch.fnmatchcase(name, pattern)]
    return [(name, seed) for seed in range(seeds) for name in names]


def print_tables(part: str, *, with_kinds: bool) -> None:
    table = read(path_of(part))
    print(f"\n{part}: {table.kind.nunique()} kinds, {len(table)} fits\n")
    print(confusion(table).to_string(index=False), end="\n\n")
    print(rates(table, kept=part == "kept").to_string(index=False))
    if with_kinds:
        print()
        print(by_kind(table).to_string(index=False))


def list_kinds(part: str) -> None:
    for kind in kinds(part).values():
        labels = ", ".join(f"{use} {label}" for use, label in kind.labels.items())
        print(f"{kind.name:32} {kind.task:16} {labels}\n    {kind.description}")


def verify(part: str, pattern: str, seeds: int) -> None:
    """Print the labels beside what was measured, and write all measures."""
    from benchmarks.verdict_kinds.verifying import verified

    rows = []
    for name, seed in wanted(part, pattern, seeds):
        found = verified(kinds(part)[name], seed)
        rows += found
        said = [f"{row['use']} {row['label']}: {row['outcome']}" for row in found if row["label"]]
        print(f"{name} {seed}: {', '.join(said)} ({found[0]['numbers']})", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS / f"verdicts_labels_{part}.csv", index=False)
    print(pd.crosstab([table.use, table.label], table.outcome))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--part", choices=PARTS, default=None)
    parser.add_argument("--kinds", default="*", metavar="GLOB")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="run the chosen kinds again")
    parser.add_argument("--table", action="store_true", help="print the results, without fits")
    parser.add_argument("--list", action="store_true", help="print the kinds and their labels")
    parser.add_argument("--verify", action="store_true", help="measure whether labels are right")
    chosen = parser.parse_args()
    for part in [chosen.part] if chosen.part else PARTS:
        if chosen.table:
            if path_of(part).exists():
                print_tables(part, with_kinds=part == "tune" or chosen.part == part)
        elif chosen.list:
            list_kinds(part)
        elif chosen.verify:
            verify(part, chosen.kinds, chosen.seeds)
        else:
            pairs = wanted(part, chosen.kinds, chosen.seeds)
            path = path_of(part)
            run(part, path, pending(path, pairs, fresh=chosen.fresh), chosen.jobs)


if __name__ == "__main__":
    main()
