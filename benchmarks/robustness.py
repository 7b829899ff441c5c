"""Noise and attacks on digits: ``python -m benchmarks.robustness [--methods mean_field ...]``.

Every method of the registry can be added with ``--methods``; ``plain`` is the same network trained
as a point: the loop of `mean_field` without divergence and with almost no noise. Prints test
accuracies averaged over strengths, and writes all curves to ``benchmarks/results/robustness.csv``
and ``.png``.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch

import zoo
from benchmarks.speed import machine_line
from zoo.diagnostics.robustness import ATTACKS, STRENGTHS

RESULTS = Path(__file__).parent / "results"
PLAIN = "plain"
METHODS = (PLAIN, "mean_field", "group_horseshoe", "gumbel_softmax_structure")
NET = "mlp:64-50-10"
COLOURS = ("#5b6676", "#0b6bcc", "#c4500b", "#17743b", "#7b3fa0", "#8f5a00")
#: Attacks in the plot; the table has all attacks.
SHOWN = ("input_noise", "fgsm")


def curves(method: str, seed: int) -> pd.DataFrame:
    """Fit a method, and return its scores over the strengths of every attack."""
    options: dict[str, Any] = {"method": method}
    attack: dict[str, Any] = {}
    if method == PLAIN:
        # All steps are pretraining without divergence; deletion is then by magnitude.
        options = {"method": "mean_field", "pretrain": 1 - 1e-9, "init_scale": 1e-6}
        attack = {"ranking": "magnitude"}
    fitted = zoo.fit(**options, data="digits", net=NET, seed=seed, compile="replay")
    found = fitted.robustness(**attack)
    rows = [
        {"attack": name, "strength": float(s), "accuracy": float(a), "nll": float(n)}
        for name in ATTACKS
        for s, a, n in zip(
            found[name], found[f"{name}_accuracy"], found[f"{name}_nll"], strict=True
        )
    ]
    return pd.DataFrame(rows).assign(method=method, seed=seed, ranking=found.attrs["ranking"])


def averages(table: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of every method for every attack and strength, averaged over seeds."""
    return table.pivot_table(index=["attack", "strength"], columns="method", values="accuracy")


def draw(table: pd.DataFrame, path: Path) -> None:
    """Plot accuracy and NLL under noise and FGSM."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex="col")
    for column, attack in enumerate(SHOWN):
        for index, method in enumerate(table.method.unique()):
            rows = table[(table.attack == attack) & (table.method == method)]
            mean = rows.groupby("strength")[["accuracy", "nll"]].mean()
            for row, score in enumerate(mean):
                axes[row, column].plot(
                    mean.index, mean[score], "o-", ms=4, label=method,
                    color=COLOURS[index % len(COLOURS)],
                )  # fmt: skip
        axes[0, column].set_title(ATTACKS[attack].capitalize())
        axes[0, column].set_ylim(0, 1.02)
        axes[1, column].set_xlabel(STRENGTHS[attack])
        axes[1, column].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("test accuracy")
    axes[1, 0].set_ylabel("NLL per row")
    axes[0, 0].legend(frameon=False, loc="lower left")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = []
    for seed in arguments.seeds:
        for method in arguments.methods:
            tables.append(curves(method, seed))
            print(f"{method}, seed {seed} done", flush=True)
    result = pd.concat(tables, ignore_index=True)
    print(averages(result).round(3).to_string())
    listed = " ".join(arguments.methods), " ".join(map(str, arguments.seeds))
    result["command"] = "python -m benchmarks.robustness --methods {} --seeds {}".format(*listed)
    result["machine"] = machine_line()
    RESULTS.mkdir(exist_ok=True)
    result.round(5).to_csv(RESULTS / "robustness.csv", index=False)
    draw(result, RESULTS / "robustness.png")


if __name__ == "__main__":
    main()
