"""Labels without meaning: ``python -m benchmarks.random_labels [--rows 1000]``.

The labels of digits are shuffled among the rows. A plain network learns them by heart; a method
that pays for what it stores has nothing to gain from them. Prints the accuracy on the training rows
with true and with shuffled labels. Writes ``benchmarks/results/random_labels.csv`` and ``.png``.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import zoo
from benchmarks.speed import machine_line
from zoo.data import load
from zoo.nets import mlp

RESULTS = Path(__file__).parent / "results"
METHODS = ("structured_bp", "sparse_vd")
PLAIN = "plain network"
SIZES = [64, 300, 100, 10]
STEPS = 3000


def plain_accuracy(x: NDArray[np.float32], y: NDArray[np.int64], seed: int) -> float:
    """Train the network as a point, and return its accuracy on the same rows."""
    torch.manual_seed(seed)
    net: nn.Module = mlp(SIZES)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs, labels = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    for _ in range(STEPS):
        rows = torch.randint(len(inputs), (128,))
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((net(inputs).argmax(-1) == labels).float().mean())


def method_accuracy(method: str, x: NDArray[np.float32], y: NDArray[np.int64], seed: int) -> float:
    """Fit a method, and return the accuracy of its predictions on the same rows."""
    net = "mlp:" + "-".join(map(str, SIZES))
    fitted = zoo.fit(method, x, y, net=net, seed=seed, task="classification")
    return float((fitted.predict_proba(x).argmax(-1) == y).mean())


def measure(rows: int, seed: int) -> pd.DataFrame:
    """Return the training accuracy of every contestant with true and with shuffled labels."""
    dataset = load("digits", seed=seed)
    x, y = dataset.X_train[:rows], dataset.y_train[:rows]
    shuffled = np.random.default_rng(seed).permutation(y)
    found = []
    for labels, target in (("true", y), ("shuffled", shuffled)):
        accuracies = {PLAIN: plain_accuracy(x, target, seed)}
        accuracies |= {method: method_accuracy(method, x, target, seed) for method in METHODS}
        for name, accuracy in accuracies.items():
            print(f"{labels} labels, {name}: {accuracy:.3f}", flush=True)
            found.append({"contestant": name, "labels": labels, "training_accuracy": accuracy})
    return pd.DataFrame(found)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the accuracies as bars."""
    wide = table.pivot(index="contestant", columns="labels", values="training_accuracy")
    axes = wide.loc[[PLAIN, *METHODS], ["true", "shuffled"]].plot.bar(
        figsize=(6, 3.5), rot=0, color=["#3b6ea5", "#d08770"]
    )
    axes.axhline(0.1, color="grey", linestyle=":", linewidth=1)
    axes.text(2.45, 0.12, "chance", ha="right", color="grey")
    axes.set(xlabel="", ylabel="accuracy on the training rows", ylim=(0, 1.05))
    axes.legend(title="labels", loc="upper right")
    axes.figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(axes.figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = measure(arguments.rows, arguments.seed)
    result["rows"], result["seed"] = arguments.rows, arguments.seed
    result["machine"] = machine_line()
    RESULTS.mkdir(exist_ok=True)
    result.round(4).to_csv(RESULTS / "random_labels.csv", index=False)
    draw(result, RESULTS / "random_labels.png")


if __name__ == "__main__":
    main()
