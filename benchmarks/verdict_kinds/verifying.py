"""Labels beside measures of the same fit."""

import tempfile
import warnings
from typing import Any

import torch

from benchmarks.verdict_kinds.case import Kind
from benchmarks.verdict_kinds.judge import fit_case
from benchmarks.verdict_kinds.measure import measures, opinions
from zoo.errors import ZooError


def verified(kind: Kind, seed: int) -> list[dict[str, Any]]:
    """Return a row for each use: the label, what was measured, and whether they agree.

    ``unmeasured`` labels are defended by the design alone. Grey measures contradict nothing.
    """
    torch.set_num_threads(1)
    case = kind.case(seed)
    found: dict[str, float] = {}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        try:
            found = measures(fit_case(case, seed, folder), case)
        except ZooError as error:
            print(f"{kind.name} {seed}: {error}")
    said = opinions(found)
    numbers = " ".join(f"{name}={value:.3g}" for name, value in found.items())
    rows = []
    for use in dict.fromkeys([*kind.labels, *said]):
        label, measured = kind.labels.get(use, ""), said.get(use, "")
        agrees = "agrees" if label == measured else "grey" if measured == "grey" else "contradicted"
        outcome = agrees if measured and label in ("good", "bad") else "unmeasured" if label else ""
        shown = {"kind": kind.name, "seed": seed, "use": use, "label": label}
        rows.append(shown | {"measured": measured, "outcome": outcome, "numbers": numbers})
    return rows
