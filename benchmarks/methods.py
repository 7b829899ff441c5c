"""All methods on the same split: ``python -m benchmarks.methods [--data digits] [--runs FOLDER]``.

Every method of the registry that supports the task is fitted with its defaults and its report.
Runs are kept in the folder, so that an interrupted benchmark can be resumed. Prints accuracy,
NLL, calibration error, weights left, time of a step and k-hat, and writes the table to
``benchmarks/results/methods_DATA.csv``.
"""

import argparse
from pathlib import Path

import pandas as pd

import zoo
from benchmarks.speed import machine_line
from zoo.data import load
from zoo.errors import ZooError
from zoo.fit.store import RunDirectory

RESULTS = Path(__file__).parent / "results"
COLUMNS = ["accuracy", "rmse", "nll", "ece", "weights_left_percent", "khat", "verdict"]


def fit_all(data: str, runs: Path, seed: int) -> tuple[list[Path], dict[str, str]]:
    """Fit every method without a run; return the runs, and the errors of the other methods."""
    done, refused = [], {}
    for method in zoo.list_models(task=load(data).schema.task):
        path = runs / f"{data}_{method}_{seed}"
        if not RunDirectory(path).is_complete:
            print(f"fitting {method}", flush=True)
            try:
                zoo.fit(method, data=data, seed=seed, out=path)
            except ZooError as error:
                refused[method] = str(error)
                continue
        done.append(path)
    return done, refused


def table(runs: list[Path]) -> pd.DataFrame:
    """Return one row per method."""
    found = zoo.compare(*runs)
    found["step_milliseconds"] = 1e3 * found.seconds / found.steps
    columns = [name for name in COLUMNS if name in found]
    return found.set_index("method")[[*columns, "step_milliseconds", "seconds"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    runs, refused = fit_all(arguments.data, arguments.runs, arguments.seed)
    for method, reason in refused.items():
        print(f"not fitted: {method} ({reason})")
    result = table(runs)
    print(result.round(4).to_string())
    result["seed"], result["machine"] = arguments.seed, machine_line()
    RESULTS.mkdir(exist_ok=True)
    result.round(6).to_csv(RESULTS / f"methods_{arguments.data}.csv")


if __name__ == "__main__":
    main()
