"""Uncertainty about unseen classes with random or averaged batch statistics.

``python -m benchmarks.stochastic_batch_norm [--network dense] [--seeds 0 1 2]``, with the folder
that holds ``fashion-mnist/`` in the environment variable ``ZOO_DATA``. A small network with batch
normalisation, dense or convolutional, is trained on five classes of Fashion-MNIST with batches of
16, on few enough rows that it becomes confident, like networks after long training.
Then the same weights predict in three ways: with running averages (plain batch normalisation), with
50 draws of `stochastic_batch_norm`, and with the statistics of 50 real mini-batches, which the
method approximates. Test rows of the five classes give error and NLL; test rows of the five other
classes give the entropy of the prediction, which should be large. Writes
``benchmarks/results/stochastic_batch_norm_NETWORK.csv`` and ``.png``. Training saves its state
under ``runs/`` and resumes from there after an interruption.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import zoo
import zoo.data
from benchmarks.speed import machine_line
from guides.base import Composite
from zoo.fit.store import RunDirectory
from zoo.infer.normalisation import moments_of_batches
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.predict.scores import expected_calibration_error
from zoo.infer.svi.loop import SVI
from zoo.models.stochastic_batch_norm import StochasticBatchNormNetwork
from zoo.registry import Recipe

RESULTS = Path(__file__).parent / "results"
WORK = Path("runs") / "benchmark_stochastic_batch_norm"
CHECKPOINT = "checkpoint.safetensors"
SEEN = 5
BATCH = 16
NUM_DRAWS = 50
TEST_ROWS = 1500
CHECKPOINT_EVERY = 250
PLAIN, STOCHASTIC, REAL = "plain batch norm", "stochastic batch norm", "real mini-batches"
COLORS = {PLAIN: "#8a8a8a", STOCHASTIC: "#1f6fb4", REAL: "#e08a1e"}

Array = NDArray[np.floating[Any]]


def convolutional() -> nn.Sequential:
    """Two convolutions and two dense layers, with normalisation after each but the last."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(32 * 7 * 7, 64), nn.BatchNorm1d(64), nn.ReLU()),
        nn.Linear(64, SEEN),
    )


def dense() -> nn.Sequential:
    """Four hidden layers of 100 units, each normalised, with more noise, as in a deep network."""
    layers: list[nn.Module] = []
    for size in (784, 100, 100, 100):
        layers += [nn.Linear(size, 100), nn.BatchNorm1d(100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, SEEN))


NETWORKS = {"dense": dense, "convolutional": convolutional}


def data(num_rows: int) -> dict[str, Tensor]:
    """Return training rows of the first five classes, and test rows of these and of the others."""
    dataset = zoo.data.load("fashion_mnist")
    x, y = torch.as_tensor(dataset.X_train), torch.as_tensor(dataset.y_train).long()
    x_test, y_test = torch.as_tensor(dataset.X_test), torch.as_tensor(dataset.y_test).long()
    seen = y_test < SEEN
    return {
        "x": x[y < SEEN][:num_rows].float(),
        "y": y[y < SEEN][:num_rows],
        "x_seen": x_test[seen][:TEST_ROWS].float(),
        "y_seen": y_test[seen][:TEST_ROWS],
        "x_unseen": x_test[~seen][:TEST_ROWS].float(),
    }


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)


def trained(
    network: str, rows: Mapping[str, Tensor], seed: int, epochs: int
) -> tuple[StochasticBatchNormNetwork, Composite, SVI]:
    """Train from where an earlier call has stopped, and match the moments of the statistics."""
    torch.manual_seed(seed)
    model = zoo.create(
        "stochastic_batch_norm",
        NETWORKS[network](),
        likelihood="categorical",
        num_data=len(rows["x"]),
    )
    assert isinstance(model, StochasticBatchNormNetwork)
    guide = model.guide(init_scale=0.01)
    steps = epochs * -(-len(rows["x"]) // BATCH)
    recipe = Recipe(num_steps=steps, batch_size=BATCH, lr=1e-3, schedule="linear", kl_warmup=0.0)
    svi = SVI(model, guide, rows["x"], rows["y"], recipe=recipe, seed=seed)
    folder = WORK / f"{network}_seed{seed}_rows{len(rows['x'])}_epochs{epochs}"
    folder.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder)
    if (folder / CHECKPOINT).exists():
        svi.load_state(*directory.read_tensors(CHECKPOINT))
        log(f"seed {seed}: continues at step {svi.progress.step} of {steps}")

    def save(running: SVI) -> None:
        directory.write_tensors(CHECKPOINT, *running.state())
        recent = running.progress.losses.last(CHECKPOINT_EVERY).mean()
        loss = float(recent) / len(rows["x"])
        log(f"seed {seed}: step {running.progress.step} of {steps}, loss per row {loss:.4f}")

    svi.run(progress_bar=False, checkpoint_every=CHECKPOINT_EVERY, on_checkpoint=save)
    log(f"seed {seed}: moments of {int(model.num_batches)} batches")
    return model, guide, svi


def statistics_of_real_batches(model: StochasticBatchNormNetwork, svi: SVI) -> dict[str, Tensor]:
    """Return the statistics of single mini-batches, as draws of all layers together."""
    collected: dict[str, list[Tensor]] = {name: [] for name in model.slots}
    for rows in islice(svi.batches.full(), NUM_DRAWS):
        for name, seen in moments_of_batches(model, [rows]).items():
            value = seen.mean.exp() if model.slots[name].positive else seen.mean
            collected[name].append(value.to(rows.dtype))
    return {name: torch.stack(values) for name, values in collected.items()}


@torch.no_grad()
def probabilities(
    model: StochasticBatchNormNetwork, guide: Composite, svi: SVI, x: Tensor, seed: int
) -> dict[str, Tensor]:
    """Return the class probabilities of the three ways to predict."""
    draws = draw_posterior(model, guide, NUM_DRAWS, seed=seed).slots
    real = statistics_of_real_batches(model, svi)
    model.eval()
    return {
        PLAIN: torch.cat([model.net(part) for part in x.split(500)]).softmax(-1),
        STOCHASTIC: network_outputs(model, draws, x).softmax(-1).mean(0),
        REAL: network_outputs(model, real, x).softmax(-1).mean(0),
    }


def entropy(p: Tensor) -> Array:
    result: Array = torch.special.entr(p).sum(-1).double().numpy()
    return result


def cdf(values: Array, at: Array) -> Array:
    """Return the empirical distribution function at given points."""
    share: Array = np.searchsorted(np.sort(values), at, side="right") / len(values)
    return share


def detection(inside: Array, outside: Array) -> float:
    """Return the probability that an unseen row has the larger entropy than a seen one (AUROC)."""
    ranks = pd.Series(np.concatenate([inside, outside])).rank().to_numpy()[len(inside) :]
    wins = ranks.sum() - len(outside) * (len(outside) + 1) / 2
    return float(wins / (len(inside) * len(outside)))


def scores(
    seen: Mapping[str, Tensor], unseen: Mapping[str, Tensor], y: Tensor
) -> list[dict[str, Any]]:
    """Return one row per way to predict."""
    grid = np.linspace(0, np.log(SEEN), 1001)
    plain = cdf(entropy(unseen[PLAIN]), grid)
    rows = []
    for name, p in seen.items():
        inside, outside = entropy(p), entropy(unseen[name])
        further_right = plain - cdf(outside, grid)
        rows.append(
            {
                "prediction": name,
                "error %": 100 * float((p.argmax(-1) != y).double().mean()),
                "nll": float(-p[torch.arange(len(y)), y].log().mean()),
                "ece": expected_calibration_error(p.double().numpy(), y.numpy()),
                "entropy seen": float(inside.mean()),
                "entropy unseen": float(outside.mean()),
                "auroc": detection(inside, outside),
                # Distance by which the curve of unseen classes lies below (to the right of) that of
                # plain batch normalisation: the largest and the smallest.
                "largest gap to plain": float(further_right.max()),
                "smallest gap to plain": float(further_right.min()),
            }
        )
    return rows


def plot(entropies: list[dict[str, dict[str, Array]]], path: Path) -> None:
    """Plot the empirical CDFs of the entropy, one thin line per seed and their mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained", sharey=True)
    grid = np.linspace(0, np.log(SEEN), 400)
    titles = {"unseen": "five classes never seen", "seen": "test rows of the five trained classes"}
    for axes, (part, title) in zip(panels, titles.items(), strict=True):
        for name, color in COLORS.items():
            curves = np.stack([cdf(found[part][name], grid) for found in entropies])
            axes.plot(grid, curves.T, color=color, linewidth=0.6, alpha=0.5)
            axes.plot(grid, curves.mean(0), color=color, linewidth=2.2, label=name)
        axes.set(title=title, xlabel="entropy of the prediction, nats", xlim=(0, np.log(SEEN)))
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("share of rows with at most this entropy")
    panels[0].text(
        0.97, 0.05, "further right: more doubt", ha="right", transform=panels[0].transAxes
    )
    panels[0].legend(loc="upper left", fontsize=9)
    figure.suptitle(f"Fashion-MNIST, batches of {BATCH}, {len(entropies)} seeds")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="dense")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = data(arguments.rows)
    log(
        f"{len(rows['x'])} training rows, {len(rows['x_seen'])} and {len(rows['x_unseen'])} to test"
    )
    table: list[dict[str, Any]] = []
    entropies: list[dict[str, dict[str, Array]]] = []
    for seed in arguments.seeds:
        model, guide, svi = trained(arguments.network, rows, seed, arguments.epochs)
        seen = probabilities(model, guide, svi, rows["x_seen"], seed)
        unseen = probabilities(model, guide, svi, rows["x_unseen"], seed)
        table += [
            {"network": arguments.network, "seed": seed} | row
            for row in scores(seen, unseen, rows["y_seen"])
        ]
        entropies.append(
            {
                part: {name: entropy(p) for name, p in found.items()}
                for part, found in (("seen", seen), ("unseen", unseen))
            }
        )
        log(f"seed {seed}: scored\n{pd.DataFrame(table[-3:]).round(4).to_string(index=False)}")
    result = pd.DataFrame(table)
    result["command"] = " ".join(["python -m benchmarks.stochastic_batch_norm", *sys.argv[1:]])
    result["machine"] = machine_line()
    RESULTS.mkdir(exist_ok=True)
    name = f"stochastic_batch_norm_{arguments.network}"
    result.round(4).to_csv(RESULTS / f"{name}.csv", index=False)
    plot(entropies, RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
