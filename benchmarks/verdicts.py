"""Error rates of the verdict: good fits that fail, and bad fits that pass.

``python -m benchmarks.verdicts [--seeds 20]``. Every seed has its own data set of 120 rows and
four independent inputs. Good fits: a linear regression, whose posterior is nearly factorised, and a
classifier with one hidden layer, both with the default guide. Bad fits of the same problems:
stopped after 10 steps; a divergence with a weight of 0.001 or 0.02, and one with a weight of 50.
There is no truth, as by default in `zoo fit`. Writes ``benchmarks/results/verdicts.csv``, with the
verdict on each fit and the checks behind it.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import zoo
from benchmarks.speed import machine_line
from zoo.data import from_arrays
from zoo.diagnostics import diagnose, verdict
from zoo.infer import svi

RESULTS = Path(__file__).parent / "results"
ROWS, INPUTS = 120, 4
TASKS = ("regression", "classification")

#: Treatments, and whether they give a good fit.
TREATMENTS = {
    "as it should be": True,
    "10 steps": False,
    "KL x 0.001": False,
    "KL x 0.02": False,
    "KL x 50": False,
}


def dataset(task: str, seed: int):  # type: ignore[no-untyped-def]
    """Return a data set, half of it held out."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2 * ROWS, INPUTS))
    f = np.tanh(x) @ rng.normal(size=INPUTS) if task == "classification" else x @ np.ones(INPUTS)
    noise = rng.normal(size=2 * ROWS)
    y = (f + 0.5 * noise > 0).astype(int) if task == "classification" else f + noise
    return from_arrays(x[:ROWS], y[:ROWS], X_test=x[ROWS:], y_test=y[ROWS:], task=task)


@contextmanager
def wrong_divergence(factor: float) -> Iterator[None]:
    """Give the divergence a wrong weight."""
    right = svi.kl_weight
    svi.kl_weight = lambda recipe, step: factor * right(recipe, step)
    try:
        yield
    finally:
        svi.kl_weight = right


def fit(task: str, treatment: str, seed: int):  # type: ignore[no-untyped-def]
    """Fit one problem, well or badly."""
    options: dict[str, object] = {
        "num_steps": 10 if treatment == "10 steps" else 2000,
        "net": "linear" if task == "regression" else "mlp:4-10-2",
    }
    factor = float(treatment.split()[-1]) if treatment.startswith("KL") else 1.0
    with wrong_divergence(factor):
        return zoo.fit(
            "mean_field",
            data=dataset(task, seed),
            seed=seed,
            num_samples=400,
            progress_bar=False,
            **options,  # type: ignore[arg-type]
        )


def judged(task: str, treatment: str, seed: int) -> dict[str, object]:
    """Return a row of the table: the verdict on one fit, and the checks behind it."""
    findings = diagnose(fit(task, treatment, seed).tree())
    by_level = {
        level: " ".join(finding.check for finding in findings if finding.level == level)
        for level in ("fail", "warn")
    }
    return {
        "task": task,
        "treatment": treatment,
        "good": TREATMENTS[treatment],
        "seed": seed,
        "verdict": verdict(findings).level,
        "failed": by_level["fail"],
        "warned": by_level["warn"],
    }


def rates(table: pd.DataFrame) -> pd.DataFrame:
    """Count verdicts by task and treatment."""
    levels = pd.crosstab([table.task, table.treatment], table.verdict)
    return levels.reindex([(task, treatment) for task in TASKS for treatment in TREATMENTS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(arguments.seeds):
        for task in TASKS:
            rows += [judged(task, treatment, seed) for treatment in TREATMENTS]
        table = pd.DataFrame(rows)
        table["machine"] = machine_line()
        table.to_csv(RESULTS / "verdicts.csv", index=False)  # complete so far if interrupted
        print(f"{seed + 1} seeds\n{rates(table)}", flush=True)


if __name__ == "__main__":
    main()
