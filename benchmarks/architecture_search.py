"""Architecture search on Fashion-MNIST: accuracy over size, for several penalties of the size.

``ZOO_DATA=... python -m benchmarks.architecture_search``. The network is ``cells:8-2-2``: two cells
with two nodes, six edges with five primitives each, 8 channels. The structure is random
(`gumbel_softmax_structure` with vertices, whose divergence contains the expected number of
parameters times the penalty); weights are points. On every edge the primitive with the largest
probability is selected, and the resulting network is retrained. `darts` is the baseline. The budget
is small: 30,000 training rows, 5000 steps of 64 rows (ten epochs) for a search and as many for
retraining, scored on all test rows; one seed. The table has the seconds on one core. Writes
``benchmarks/results/architecture_search.csv`` and ``.png``.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zoo
from benchmarks.speed import machine_line
from zoo.data import Dataset, load
from zoo.fit.tree import structure_edges
from zoo.network.nets import Graph, Mixed
from zoo.report.figures.graph import paint_graph

RESULTS = Path(__file__).parent / "results"
NET = "cells:8-2-2"
PENALTIES = (0.0, 3.0, 10.0, 30.0)
TRAIN_ROWS, TEST_ROWS, BATCH_SIZE = 30_000, 10_000, 64
LR = 5e-3


def data() -> Dataset:
    loaded = load("fashion_mnist")
    return replace(
        loaded,
        X_train=loaded.X_train[:TRAIN_ROWS],
        y_train=loaded.y_train[:TRAIN_ROWS],
        X_test=loaded.X_test[:TEST_ROWS],
        y_test=loaded.y_test[:TEST_ROWS],
    )


def search(method: str, dataset: Dataset, num_steps: int, **options: Any) -> Any:
    """Fit the structure; return the fit."""
    return zoo.fit(
        method,
        data=dataset,
        net=NET,
        bayesian=["*.structure"],
        num_steps=num_steps,
        batch_size=BATCH_SIZE,
        lr=LR,
        num_samples=3,
        seed=0,
        # Weights first: a structure trained early prefers the primitives that train fastest.
        pretrain=0.25,
        kl_warmup=0.25,
        compile="replay",
        progress_bar=False,
        **options,
    )


def accuracy(net: nn.Module, dataset: Dataset) -> float:
    x, y = tensors(dataset.X_test), torch.as_tensor(dataset.y_test)
    with torch.no_grad():
        return float((net(x).argmax(-1) == y).double().mean())


def tensors(x: Any) -> Tensor:
    return torch.as_tensor(np.asarray(x, dtype=np.float32))


def chosen_network(fitted: Any) -> tuple[nn.Module, dict[str, int]]:
    """Return the network with one primitive per edge and the weights of the search."""
    net = fitted.assembly.model.net
    graph = net[-1]
    assert isinstance(graph, Graph)
    guide = fitted.assembly.guide
    choices = {
        name: int(guide[f"2.edges.{name}.structure"].probabilities().argmax())
        for name, module in graph.edges.items()
        if isinstance(module, Mixed)
    }
    return nn.Sequential(*net[:-1], graph.select(choices)), choices


def probable_edges(fitted: Any) -> list[dict[str, Any]]:
    """Return the edges of the graph with the probabilities of their primitives."""
    guide, slots = fitted.assembly.guide, fitted.draws.slots
    probabilities = {name: guide[name].probabilities()[None] for name in slots}
    return structure_edges(fitted.assembly.model.net, probabilities)


def trained_anew(net: nn.Module, dataset: Dataset, num_steps: int) -> nn.Module:
    torch.manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.reset_parameters()
    x, y = tensors(dataset.X_train), torch.as_tensor(dataset.y_train)
    net.requires_grad_(True)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    generator = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        optimizer.param_groups[0]["lr"] = LR * min(1.0, 2 - 2 * step / num_steps)
        rows = torch.randint(len(x), (BATCH_SIZE,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    return net


def plot(table: pd.DataFrame, graphs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    grid = figure.add_gridspec(3, 2)
    axes = figure.add_subplot(grid[0, 0])
    ours = table[table["method"] != "darts"].sort_values("parameters")
    axes.plot(ours["parameters"], ours["accuracy"], "o-", color="#0b6bcc")
    for place, rows in ours.groupby(["parameters", "accuracy"]):
        axes.annotate(
            ", ".join(f"{penalty:g}" for penalty in sorted(rows["penalty"])),
            place,
            (5, -11),
            textcoords="offset points",
            fontsize=9,
        )
    baseline = table[table["method"] == "darts"]
    axes.plot(baseline["parameters"], baseline["accuracy"], "s", color="#c4500b", label="darts")
    axes.plot([], [], "o-", color="#0b6bcc", label="structure, by penalty")
    axes.set(xlabel="parameters", ylabel="test accuracy, trained anew")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    for place, (name, edges) in enumerate(graphs.items(), start=1):
        panel = figure.add_subplot(grid[place // 2, place % 2])
        paint_graph(panel, edges)
        panel.set_title(name, loc="left", fontsize=10)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = data()
    runs: list[tuple[str, float | None, dict[str, Any]]] = [
        (
            "gumbel_softmax_structure",
            penalty,
            {
                "priors": {
                    "*.structure": f"GumbelSoftmaxStructure(points=vertices, penalty={penalty})"
                }
            },
        )
        for penalty in PENALTIES
    ]
    runs.append(("darts", None, {}))
    rows, graphs = [], {}
    for method, penalty, options in runs:
        started = time.process_time()
        fitted = search(method, dataset, arguments.steps, **options)
        searched = time.process_time() - started
        edges = probable_edges(fitted)
        title = "darts" if penalty is None else f"penalty {penalty:g}"
        graphs[title] = edges
        net, choices = chosen_network(fitted)
        after_search = accuracy(net, dataset)
        net = trained_anew(net, dataset, arguments.steps)
        drawn = fitted.outputs(dataset.X_test, fitted.draws.values).softmax(-1).mean(0)
        mixture = (drawn.argmax(-1) == torch.as_tensor(dataset.y_test)).double().mean()
        rows.append(
            {
                "method": method,
                "penalty": penalty,
                "parameters": sum(p.numel() for p in net.parameters()),
                "accuracy_of_mixture": float(mixture),
                "accuracy_of_choice": after_search,
                "accuracy": accuracy(net, dataset),
                "choices": " ".join(f"{k}:{v}" for k, v in choices.items()),
                "search_seconds": searched,
            }
        )
        print(rows[-1], flush=True)
    command = f"python -m benchmarks.architecture_search --steps {arguments.steps}"
    table = pd.DataFrame(rows).assign(command=command, seed=0, machine=machine_line())
    table.round(4).to_csv(RESULTS / "architecture_search.csv", index=False)
    plot(table, graphs, RESULTS / "architecture_search.png")


if __name__ == "__main__":
    main()
