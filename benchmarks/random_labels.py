"""Random labels: ``python -m benchmarks.random_labels [--rows 1000] [--steps 1000]``.

The labels of digits are shuffled among the rows. A plain network memorises them; a method with a
divergence for every weight has nothing to gain from them. The noise of `structured_bp` starts
small ("quiet"), as in its recipe, or large ("loud"), without KL warm-up. Prints the
accuracy on the training rows with true and with shuffled labels and the ELBO, which for guessing is
minus the number of rows times log 10. Every row is written to
``benchmarks/results/random_labels.csv`` as soon as it is available, and finished rows are skipped;
the plot is drawn at the end.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

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
from zoo.infer.svi.bound import elbo_and_error
from zoo.network.nets import mlp

RESULTS = Path(__file__).parent / "results"
PLAIN = "plain network"
#: Methods, with changes of their recipes.
CONTESTANTS: dict[str, dict[str, Any]] = {
    "structured_bp, quiet start": {"method": "structured_bp"},
    "structured_bp, loud start": {
        "method": "structured_bp",
        "init_scale": 1.0,
        "kl_warmup": 0.0,
    },
    "sparse_vd": {"method": "sparse_vd"},
}
SIZES = [64, 300, 100, 10]
PLAIN_STEPS = 3000

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def plain_scores(x: Rows, y: Labels, seed: int) -> dict[str, float]:
    """Train the network as a point, and return its accuracy on the same rows."""
    torch.manual_seed(seed)
    net: nn.Module = mlp(SIZES)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs, labels = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    for _ in range(PLAIN_STEPS):
        rows = torch.randint(len(inputs), (128,))
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return {"training_accuracy": float((net(inputs).argmax(-1) == labels).float().mean())}


def method_scores(
    options: dict[str, Any], x: Rows, y: Labels, seed: int, steps: int
) -> dict[str, float]:
    """Fit a method; return the accuracy of its predictions on the same rows, and its ELBO."""
    net = "mlp:" + "-".join(map(str, SIZES))
    task = {"task": "classification", "num_steps": steps, "num_samples": 30}
    fitted = zoo.fit(X=x, y=y, net=net, seed=seed, progress_bar=False, **task, **options)
    model, guide = fitted.assembly.model, fitted.assembly.guide
    tensors = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    accuracy = float((fitted.predict_proba(x).argmax(-1) == y).mean())
    return {"training_accuracy": accuracy, "elbo": elbo_and_error(model, guide, *tensors)[0]}


def measure(name: str, labels: str, rows: int, seed: int, steps: int) -> dict[str, Any]:
    """Return one row of the table."""
    dataset = load("digits", seed=seed)
    x, y = dataset.X_train[:rows], dataset.y_train[:rows]
    if labels == "shuffled":
        y = np.random.default_rng(seed).permutation(y)
    is_plain = name == PLAIN
    scores = (
        plain_scores(x, y, seed)
        if is_plain
        else method_scores(CONTESTANTS[name], x, y, seed, steps)
    )
    return {
        "contestant": name,
        "labels": labels,
        **{key: round(value, 4) for key, value in scores.items()},
        "elbo_of_guessing": round(-rows * np.log(10), 1),
        "rows": rows,
        "seed": seed,
        "steps": PLAIN_STEPS if is_plain else steps,
        "machine": machine_line(),
        "command": " ".join(["python -m benchmarks.random_labels", *sys.argv[1:]]),
    }


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the accuracies as bars."""
    wide = table.pivot(index="contestant", columns="labels", values="training_accuracy")
    wide = wide.loc[[PLAIN, *CONTESTANTS], ["true", "shuffled"]]
    wide.index = wide.index.str.replace(", ", "\n")
    axes = wide.plot.bar(figsize=(7, 3.5), rot=0, color=["#3b6ea5", "#d08770"])
    axes.axhline(0.1, color="grey", linestyle=":", linewidth=1)
    axes.text(0.5, 0.12, "chance", color="grey", ha="center")
    axes.set(xlabel="", ylabel="accuracy on the training rows", ylim=(0, 1.05))
    axes.legend(title="labels", loc="upper left", bbox_to_anchor=(1, 1))
    axes.figure.savefig(path, dpi=100, bbox_inches="tight")
    plt.close(axes.figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "random_labels.csv"
    table = pd.read_csv(path) if path.exists() else pd.DataFrame()
    for name in [PLAIN, *CONTESTANTS]:
        for labels in ("shuffled", "true"):
            if len(table) and ((table.contestant == name) & (table.labels == labels)).any():
                continue
            row = measure(name, labels, arguments.rows, arguments.seed, arguments.steps)
            print(f"{labels} labels, {name}: {row['training_accuracy']:.3f}", flush=True)
            table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
            table.to_csv(path, index=False)
    draw(table, RESULTS / "random_labels.png")


if __name__ == "__main__":
    main()
