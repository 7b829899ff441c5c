"""Overfitting over width: ``python -m benchmarks.widths [--seeds 0 1 2] [--steps 3000]``.

Networks with one hidden layer of 1 to 60 units on the Alzheimer table (``tabular/`` under the
environment variable ``ZOO_DATA``): the area under the ROC curve on training and test rows for
`empirical_bayes` and for the same network without any regularisation (Adam, learning rate 0.01).
Published for the Bayesian network: no overfitting with increasing width, and a correlation of 0.97
between training and test area. Writes ``benchmarks/results/widths.csv`` and ``.png``.
"""

import argparse
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn

import zoo
from benchmarks.speed import machine_line
from zoo.data import Dataset, from_arrays

RESULTS = Path(__file__).parent / "results"
WIDTHS = (1, 2, 4, 8, 16, 32, 60)
BAYES, PLAIN = "empirical_bayes", "unregularised"
UNUSED = ["PatientID", "DoctorInCharge"]


def network(width: int) -> nn.Sequential:
    """Return one hidden layer with ELU, as in the archived runs."""
    return nn.Sequential(nn.Linear(32, width), nn.ELU(), nn.Linear(width, 2))


def dataset_of(seed: int) -> Dataset:
    """Return the table with standardised columns, four fifths of it for training."""
    folder = Path(os.environ["ZOO_DATA"]) / "tabular"
    frame = pd.read_csv(folder / "alzheimers_disease_data.csv.gz").drop(columns=UNUSED)
    y = frame.pop("Diagnosis").to_numpy()
    x = ((frame - frame.mean()) / frame.std()).to_numpy(np.float32)
    return from_arrays(x, y, task="classification", test_fraction=0.2, seed=seed)


def bayesian_scores(dataset: Dataset, width: int, seed: int, steps: int) -> tuple[float, float]:
    """Return the areas on training and test rows of the Bayesian network."""
    torch.manual_seed(seed)
    fitted = zoo.fit(
        BAYES, data=dataset, net=network(width), seed=seed, num_steps=steps, batch_size=10_000
    )
    train, test = (fitted.predict_proba(x)[:, 1] for x in (dataset.X_train, dataset.X_test))
    return roc_auc_score(dataset.y_train, train), roc_auc_score(dataset.y_test, test)


def plain_scores(dataset: Dataset, width: int, seed: int, steps: int) -> tuple[float, float]:
    """Return the areas of the network trained as a point, without any regularisation."""
    torch.manual_seed(seed)
    net = network(width)
    x = torch.as_tensor(dataset.X_train, dtype=torch.float32)
    y = torch.as_tensor(dataset.y_train)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        held_out = torch.as_tensor(dataset.X_test, dtype=torch.float32)
        train, test = (net(rows).softmax(-1)[:, 1].numpy() for rows in (x, held_out))
    return roc_auc_score(dataset.y_train, train), roc_auc_score(dataset.y_test, test)


def measure(seeds: list[int], steps: int) -> pd.DataFrame:
    """Return the areas for every width and seed."""
    rows = []
    for seed in seeds:
        dataset = dataset_of(seed)
        for width in WIDTHS:
            for name, scores in ((BAYES, bayesian_scores), (PLAIN, plain_scores)):
                train, test = scores(dataset, width, seed, steps)
                print(f"seed {seed}, width {width}, {name}: {train:.3f} {test:.3f}", flush=True)
                row = {"contestant": name, "width": width, "seed": seed}
                rows.append(row | {"train_auc": train, "test_auc": test})
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Plot both areas over the width."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axes, name in zip(panels, (BAYES, PLAIN), strict=True):
        own = table[table.contestant == name]
        means = own.groupby("width")[["train_auc", "test_auc"]].mean()
        for column, label, color in (
            ("train_auc", "training rows", "#3b6ea5"),
            ("test_auc", "test rows", "#d08770"),
        ):
            axes.plot(means.index, means[column], marker="o", label=label, color=color)
            axes.plot(own.width, own[column], ".", color=color, alpha=0.3)
        correlation = np.corrcoef(own.train_auc, own.test_auc)[0, 1]
        axes.set(title=f"{name}, correlation {correlation:.2f}", xlabel="hidden units")
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    panels[0].set_ylabel("area under the ROC curve")
    panels[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments.seeds, arguments.steps)
    for name, own in result.groupby("contestant"):
        correlation = np.corrcoef(own.train_auc, own.test_auc)[0, 1]
        print(f"{name}: correlation of training and test area {correlation:.3f}")
    result["steps"], result["machine"] = arguments.steps, machine_line()
    result["command"] = " ".join(["python -m benchmarks.widths", *sys.argv[1:]])
    RESULTS.mkdir(exist_ok=True)
    result.round(5).to_csv(RESULTS / "widths.csv", index=False)
    draw(result, RESULTS / "widths.png")


if __name__ == "__main__":
    main()
