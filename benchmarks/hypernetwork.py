"""One fit instead of five: ``python -m benchmarks.hypernetwork --data digits [--seeds 0 1]``.

A hypernetwork is trained once, piecewise linear and linear. Five networks are trained separately,
each with its own weight of the divergence, for a quarter of the steps; a sixth with the weight 10,
at which networks on digits begin to collapse to the prior. The test accuracies of the hypernetwork
(50 draws) and of the separate networks are averaged over seeds: a point is 3.6 of the 359 test
rows of digits, and 100 test rows of MNIST (``--data mnist``, from ``ZOO_DATA``). The size is the
fraction of weights left by the pruning rule of `graves`. ``--share`` trains all of them for a
fraction of their steps. Writes ``benchmarks/results/hypernetwork_DATA.csv`` and ``.png``.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro.poutine as poutine
import torch
from torch import Tensor

import zoo
import zoo.data
from benchmarks.speed import machine_line
from guides.base import Composite, Guide
from guides.graves import GravesGuide, graves_relevance
from zoo.infer.predict.draws import draw_posterior, log_likelihood, log_predictive_density
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.loop import SVI
from zoo.likelihoods import Categorical
from zoo.network.bnn import BNN
from zoo.network.nets import mlp
from zoo.registry import Recipe, get

RESULTS = Path(__file__).parent / "results"
#: Steps of a separate network; the hypernetwork has four times as many, fewer than five networks.
STEPS = {"digits": 3000, "mnist": 20_000}
HYPERNETWORK_STEPS = 4
#: The default learning rate of 0.01 is too large for 784 inputs of which most are -1.
LR = {"digits": 1e-2, "mnist": 3e-3}
HIDDEN = 50
#: Weights at which networks are compared, and one where they collapse.
WEIGHTS = (0.001, 0.01, 0.1, 1.0, 3.0)
BEYOND = 10.0
#: Weights at which the hypernetwork is plotted.
GRID = tuple(float(f"{w:.3g}") for w in np.logspace(-3, 2, 21))
NUM_DRAWS = 50
SEPARATE, PIECEWISE, LINEAR = "separate networks", "piecewise linear", "linear"
COLOURS = {SEPARATE: "#1c2431", PIECEWISE: "#0b6bcc", LINEAR: "#c4500b"}


class WeightedBNN(BNN):
    """A network with a fixed weight of the divergence, without the hypernetwork."""

    def __init__(self, *arguments: Any, weight: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.weight = weight

    def weighted(self) -> AbstractContextManager[Any]:
        scaled: AbstractContextManager[Any] = poutine.scale(scale=self.weight)
        return scaled

    def sample_slots(self) -> dict[str, Tensor]:
        with self.weighted():
            return super().sample_slots()

    def guide(self, *, init_scale: float) -> "WeightedGuide":
        return WeightedGuide(self, self.factorised_guide(init_scale).by_name())


class WeightedGuide(Composite):
    """The guide of a `WeightedBNN`."""

    def __init__(self, model: WeightedBNN, parts: dict[str, Guide]) -> None:
        super().__init__(parts)
        self.weighted = model.weighted

    def guide(self) -> None:
        with self.weighted():
            super().guide()


class Problem:
    """Data, split by a seed, and training on them."""

    def __init__(self, data: str, seed: int, share: float) -> None:
        dataset = zoo.data.load(data, seed=seed)
        self.seed, self.num_steps, self.lr = seed, round(share * STEPS[data]), LR[data]
        self.x, self.y = torch.as_tensor(dataset.X_train).float(), torch.as_tensor(dataset.y_train)
        self.x_test = torch.as_tensor(dataset.X_test).float()
        self.y_test = torch.as_tensor(dataset.y_test)

    def net(self) -> torch.nn.Module:
        torch.manual_seed(self.seed)
        return mlp([self.x.shape[1], HIDDEN, 10])

    def train(self, model: BNN, guide: Guide, recipe: Recipe, num_steps: int) -> float:
        """Train, and return the seconds it took."""
        recipe = replace(recipe, num_steps=num_steps, lr=self.lr)
        started = time.perf_counter()
        svi = SVI(
            model, guide, self.x, self.y, recipe=recipe, seed=self.seed, local=True, mode="replay"
        )
        svi.run(progress_bar=False)
        return time.perf_counter() - started

    def scores(self, model: BNN, guide: Guide) -> dict[str, float]:
        """Return accuracy and NLL on test rows, and the fraction of weights kept."""
        values = draw_posterior(model, guide, NUM_DRAWS, seed=self.seed).slots
        f = network_outputs(model, values, self.x_test)
        right = f.softmax(-1).mean(0).argmax(-1) == self.y_test
        density = log_predictive_density(log_likelihood(model, f, None, self.y_test)).mean()
        kept = torch.cat([mask.flatten() for mask in _kept(guide)])
        return {
            "accuracy": float(right.double().mean()),
            "nll": -float(density),
            "weights_left_percent": 100 * float(kept.double().mean()),
        }


def _kept(guide: Guide) -> Iterator[Tensor]:
    """Yield masks of the weights kept by the rule of `graves`."""
    assert isinstance(guide, Composite)
    for name, part in guide.by_name().items():
        if name.endswith("weight"):
            posterior: Any = part[name]  # type: ignore[index]
            relevance = graves_relevance(posterior.loc, posterior.log_scale.exp())
            yield relevance <= GravesGuide.default_threshold


def separate(data: Problem, weight: float) -> dict[str, Any]:
    """Train one network for one weight."""
    entry = get("mean_field")
    model = WeightedBNN(
        data.net(), Categorical(), default_priors=entry.priors, num_data=len(data.x), weight=weight
    )
    guide = model.guide(init_scale=entry.recipe.init_scale)
    seconds = data.train(model, guide, entry.recipe, data.num_steps)
    scores = data.scores(model, guide)
    return {"contestant": SEPARATE, "weight": weight, **scores, "seconds": seconds}


def trained_once(data: Problem, contestant: str) -> list[dict[str, Any]]:
    """Train a hypernetwork, and score it at many weights."""
    recipe = get("hypernetwork").recipe
    model = zoo.create(
        "hypernetwork",
        data.net(),
        likelihood="categorical",
        num_data=len(data.x),
        options={} if contestant == PIECEWISE else {"knots": 2},
    )
    guide: Any = model.guide(init_scale=recipe.init_scale)
    seconds = data.train(model, guide, recipe, HYPERNETWORK_STEPS * data.num_steps)
    rows = {"contestant": contestant, "seconds": seconds}
    weights = sorted({*WEIGHTS, BEYOND, *GRID})
    return [rows | {"weight": w, **data.scores(model, guide.at(w))} for w in weights]


def measure(name: str, seeds: list[int], share: float) -> Iterator[pd.DataFrame]:
    """Train everything for every seed, and yield the results so far after each fit."""
    found: list[dict[str, Any]] = []
    for seed in seeds:
        data = Problem(name, seed, share)
        trainings = [partial(_one, data, weight) for weight in WEIGHTS]
        trainings += [partial(trained_once, data, PIECEWISE), partial(_one, data, BEYOND)]
        trainings += [partial(trained_once, data, LINEAR)]
        for training in trainings:
            found += [{"data": name, "seed": seed, **row} for row in training()]
            yield pd.DataFrame(found)


def _one(data: Problem, weight: float) -> list[dict[str, Any]]:
    return [separate(data, weight)]


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies at the compared weights, averaged over seeds, and their differences."""
    shown = table[table.weight.isin([*WEIGHTS, BEYOND])]
    wide = shown.pivot_table(index="weight", columns="contestant", values="accuracy")
    for contestant in wide.columns.difference([SEPARATE]):
        wide[f"{contestant}, points"] = 100 * (wide[contestant] - wide[SEPARATE])
    return wide


def draw(table: pd.DataFrame, path: Path) -> None:
    """Plot accuracy and size over the weight, averages with the range over seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name, colour in COLOURS.items():
        rows = table[table.contestant == name].groupby("weight")
        style = {"color": colour, "label": name}
        style |= {"ls": "", "marker": "o", "zorder": 3} if name == SEPARATE else {"marker": ""}
        for axis, column in zip(axes, ("accuracy", "weights_left_percent"), strict=True):
            values = rows[column].agg(["mean", "min", "max"])
            axis.plot(values.index, values["mean"], **style)
            axis.vlines(values.index, values["min"], values["max"], color=colour, lw=1, alpha=0.5)
    axes[0].set(ylabel="test accuracy", ylim=(0, 1.02))
    axes[1].set(ylabel="weights left (%)", ylim=(0, 100))
    for axis in axes:
        axis.set(xscale="log", xlabel="weight of the complexity")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=STEPS, default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--share", type=float, default=1.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = " ".join(map(str, arguments.seeds))
    command = (
        f"python -m benchmarks.hypernetwork --data {arguments.data} --seeds {seeds} "
        f"--share {arguments.share:g}"
    )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"hypernetwork_{arguments.data}.csv"
    for result in measure(arguments.data, arguments.seeds, arguments.share):
        last = result.iloc[-1]
        print(f"seed {last.seed}, {last.contestant}: {last.seconds:.0f} seconds", flush=True)
        result["command"] = command
        result["machine"] = machine_line()
        result.round(4).to_csv(path, index=False)
        if result.contestant.nunique() > 1:
            draw(result, path.with_suffix(".png"))
    print(compared(result).round(4).to_string())


if __name__ == "__main__":
    main()
