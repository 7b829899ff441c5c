"""Polynomial regression with bilevel optimisation of prior variances and structure.

``python -m benchmarks.bilevel``. Part one: rows of a cubic, fitted by Legendre polynomials with one
prior variance per coefficient, optimised by greedy hyper-gradients (the objective of both levels is
the evidence lower bound). They are compared with fixed variances, for which the best factorised
posterior has a closed form. The score is the negative log density of 1000 new rows, with enough
rows for as many hyper-parameters as coefficients, and with too few. Part two: an edge whose
primitives are polynomials of degree one to five, with the structure at vertices. The mode of its
posterior is compared with all five exact evidences. Writes ``benchmarks/results/bilevel.csv`` and
``.png``.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.polynomial.legendre import legvander
from scipy import special, stats
from torch import Tensor, nn

import zoo
from benchmarks.speed import machine_line
from benchmarks.two_levels import Bilevel
from zoo.infer.evidence import Array, LinearModel, polynomial_features
from zoo.infer.svi.loop import SVI
from zoo.network.nets import build_net
from zoo.registry import Recipe

RESULTS = Path(__file__).parent / "results"
#: Rows and degree.
PROBLEMS = {"enough rows": (25, 10), "too few rows": (20, 15)}
NOISE = 0.3
FIXED = (0.01, 0.1, 1.0, 10.0, 100.0)
SLOT = "1.edges.0-1.structure"
#: Coefficients of increasing powers, by true degree.
TRUTHS = {
    1: [0.2, 1.2],
    2: [0.1, 0.5, 1.6],
    3: [0.2, -1.0, 0.3, 2.5],
    4: [0.1, 0.5, -3.0, 0.5, 4.0],
}


def data(degree: int, rows: int, seed: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, rows)
    clean = polynomial_features(x, degree) @ np.array(TRUTHS[degree])
    return x, clean + NOISE * generator.standard_normal(rows)


class Legendre(nn.Module):
    """A sum of Legendre polynomials, which are nearly orthogonal on uniform inputs."""

    def __init__(self, degree: int) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.zeros(degree + 1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        values = [torch.ones_like(x), x]
        for k in range(1, len(self.coefficients) - 1):
            values.append(((2 * k + 1) * x * values[-1] - k * values[-2]) / (k + 1))
        return (torch.cat(values, -1) * self.coefficients).sum(-1, keepdim=True)


def held_out_nll(mean: Array, variance: Array, seed: int) -> float:
    """Return minus the mean log predictive density of a factorised Gaussian posterior."""
    x, y = data(3, 1000, 10_000 + seed)
    features = legvander(x, len(mean) - 1)
    spread = np.sqrt(features**2 @ variance + NOISE**2)
    return -float(stats.norm.logpdf(y, features @ mean, spread).mean())


def fixed(variance: float, problem: str, seed: int) -> float:
    num_rows, degree = PROBLEMS[problem]
    x, y = data(3, num_rows, seed)
    model = LinearModel(legvander(x, degree), y, 1 / variance, NOISE**-2)
    return held_out_nll(model.mean, 1 / np.diag(model.precision), seed)


def bilevel(problem: str, seed: int, num_steps: int) -> tuple[float, Array]:
    """Return the score and the prior standard deviation of each coefficient."""
    torch.manual_seed(seed)
    num_rows, degree = PROBLEMS[problem]
    x, y = data(3, num_rows, seed)
    model = zoo.create(
        "mean_field", Legendre(degree), likelihood=f"gaussian(noise={NOISE})", num_data=num_rows
    ).double()
    guide = model.guide(init_scale=0.1)
    levels = Bilevel(model, guide, torch.as_tensor(x)[:, None], torch.as_tensor(y))
    levels.run(num_steps=num_steps, lr=0.1, hyper_lr=0.1, unroll=1, unroll_lr=1e-3)
    posterior = guide["coefficients"]["coefficients"]
    mean, log_sd = posterior.loc.detach().numpy(), posterior.log_scale.detach().numpy()
    scales = model.prior("coefficients").prior_scale.numpy()
    return held_out_nll(mean, np.exp(2 * log_sd), seed), scales


def structure(degree: int, num_steps: int) -> dict[str, Any]:
    """Compare the posterior of the degree with enumeration."""
    torch.manual_seed(0)
    x, y = data(degree, 60, 77 + degree)
    degrees = range(1, 6)
    primitives = [[f"powers({k})", "linear(outputs)"] for k in degrees]
    model = zoo.create(
        "gumbel_softmax_structure",
        build_net({"edges": {"0-1": primitives}}, 1, 1).double(),
        likelihood=f"gaussian(noise={NOISE})",
        num_data=60,
        priors={
            "*.structure": "GumbelSoftmaxStructure(points=vertices)",
            "*.weight": "Normal(0, 2)",
        },
    ).double()
    guide = model.guide(init_scale=0.1)
    rows = torch.as_tensor(x)[:, None], torch.as_tensor(y)
    # Weights first: a structure trained early prefers the primitives that train fastest.
    for trained, steps in ((False, num_steps // 2), (True, num_steps)):
        guide[SLOT].requires_grad_(trained)
        recipe = Recipe(num_steps=steps, batch_size=60, lr=0.05, kl_warmup=0.0)
        SVI(model, guide, *rows, recipe=recipe, seed=0).run(progress_bar=False)
    found = guide[SLOT].probabilities().numpy()
    evidences = []
    for k in degrees:
        precision = np.array([1.0] + [0.25] * k)
        exact = LinearModel(polynomial_features(x, k), y, precision, NOISE**-2)
        evidences.append(exact.log_evidence)
    exact = special.softmax(evidences)
    return {
        "true_degree": degree,
        "mode_of_posterior": 1 + int(found.argmax()),
        "mode_of_enumeration": 1 + int(exact.argmax()),
        "posterior": found,
        "enumeration": exact,
    }


def plot_scores(axes: Any, scores: pd.DataFrame, problem: str) -> None:
    names = [f"fixed_{variance:g}" for variance in FIXED]
    rows = scores[scores["problem"] == problem]
    label = "one fixed variance"
    mean, error = rows[names].mean(), rows[names].sem()
    axes.errorbar(FIXED, mean, error, fmt="o-", color="#8b96a4", capsize=3, label=label)
    level, error = rows["bilevel"].mean(), rows["bilevel"].sem()
    axes.axhline(level, color="#0b6bcc", label="bilevel, one per coefficient")
    axes.axhspan(level - error, level + error, color="#0b6bcc", alpha=0.15, lw=0)
    axes.set(xscale="log", xlabel="prior variance", ylim=(0.2, 1.4))
    num_rows, degree = PROBLEMS[problem]
    axes.set_title(f"{num_rows} rows, degree {degree}", loc="left")


def plot(scores: pd.DataFrame, choices: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    *lefts, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.5])
    for axes, problem in zip(lefts, PROBLEMS, strict=True):
        plot_scores(axes, scores, problem)
    lefts[0].set_ylabel("negative log density of new rows")
    lefts[0].legend(frameon=False)
    width = 0.38
    for index, choice in enumerate(choices):
        place = 6 * index + np.arange(5)
        right.bar(place - width / 2, choice["enumeration"], width, color="#c4500b")
        right.bar(place + width / 2, choice["posterior"], width, color="#0b6bcc")
    right.bar([0], [0], color="#c4500b", label="enumeration, exact")
    right.bar([0], [0], color="#0b6bcc", label="posterior of structure")
    right.set_xticks(
        [6 * i + k for i in range(len(choices)) for k in range(5)],
        [str(k + 1) for _ in choices for k in range(5)],
    )
    for index, choice in enumerate(choices):
        right.text(6 * index + 2, 1.03, f"true: {choice['true_degree']}", ha="center")
    right.set(ylim=(0, 1.3), xlabel="degree", ylabel="probability")
    right.set_title("Which degree?", loc="left")
    right.legend(frameon=False, ncols=2, loc="upper center")
    for axes in (*lefts, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for problem, seed in itertools.product(PROBLEMS, range(arguments.seeds)):
        score, scales = bilevel(problem, seed, arguments.steps)
        named = {f"fixed_{v:g}": fixed(v, problem, seed) for v in FIXED}
        rows.append({"problem": problem, "seed": seed, "bilevel": score} | named)
        print(rows[-1], np.round(scales, 3), flush=True)
    scores = pd.DataFrame(rows)
    choices = [structure(degree, 400) for degree in TRUTHS]
    for choice in choices:
        print({k: np.round(v, 3) for k, v in choice.items()}, flush=True)
    print(scores.groupby("problem").mean().T, flush=True)
    command = f"python -m benchmarks.bilevel --seeds {arguments.seeds} --steps {arguments.steps}"
    plot(scores, choices, RESULTS / "bilevel.png")
    modes = [{k: v for k, v in c.items() if not isinstance(v, np.ndarray)} for c in choices]
    for choice, mode in zip(choices, modes, strict=True):
        mode |= {f"enumeration_{k + 1}": p for k, p in enumerate(choice["enumeration"])}
        mode |= {f"posterior_{k + 1}": p for k, p in enumerate(choice["posterior"])}
    table = pd.concat(
        [scores.assign(part="held-out nll"), pd.DataFrame(modes).assign(part="structure", seed=0)]
    )
    table = table.assign(command=command, machine=machine_line())
    table.round(5).to_csv(RESULTS / "bilevel.csv", index=False)


if __name__ == "__main__":
    main()
