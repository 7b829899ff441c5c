"""Structure selection among three primitives for three weights of the prior.

``python -m benchmarks.structure_toy``. Fifty rows y = tanh(2 x) + noise of 0.5. One edge mixes a
constant (1 parameter), tanh(w x + b) (2) and tanh of a polynomial of degree ten (11). Prior
variances and favours are optimised on the upper level, with a weight of the prior much larger than
that of the likelihood, equal (the evidence lower bound), and much smaller. In all three cases the
two levels have the same objective, so first-order hyper-gradients are exact. Of several starts
(``--starts``), the one with the best lower objective is used. Writes
``benchmarks/results/structure_toy.csv`` and ``.png``.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import zoo
from benchmarks.speed import machine_line
from benchmarks.two_levels import Bilevel, Metaparameters
from guides.simplex import log_weights
from zoo.network.nets import build_net

RESULTS = Path(__file__).parent / "results"
NAMES = ("constant", "tanh(w x)", "tanh(polynomial)")
NOISE = 0.5
ROWS = 50
#: Weights of likelihood and prior on the upper level, and of the prior on the lower level.
REGIMES = {
    "strong prior": Metaparameters(lam_q_lik=0.01, lam_q_prior=1.0, lam_l_prior=100.0),
    "evidence": Metaparameters(),
    "weak prior": Metaparameters(lam_q_lik=100.0, lam_q_prior=1.0, lam_l_prior=0.01),
}
TEMPERATURES = (0.3, 1.0, 10.0)
SLOT = "1.edges.0-1.structure"


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 2.4 * torch.rand(ROWS, 1, generator=generator, dtype=torch.float64) - 1.2
    noise = torch.randn(ROWS, generator=generator, dtype=torch.float64)
    return x, torch.tanh(2 * x[:, 0]) + NOISE * noise


def fit(meta: Metaparameters, temperature: float, start: int, num_steps: int) -> dict[str, Any]:
    """Fit once; return the objective and draws of the structure."""
    torch.manual_seed(start)
    x, y = data()
    model = zoo.create(
        "gumbel_softmax_structure",
        build_net("toy", 1, 1).double(),
        likelihood=f"gaussian(noise={NOISE})",
        num_data=ROWS,
        priors={"*.structure": f"GumbelSoftmaxStructure(temperature={temperature})"},
        options={"start": temperature},
    ).double()
    guide = model.guide(init_scale=0.1)
    problem = Bilevel(model, guide, x, y, metaparameters=meta, per="slot")
    solution = problem.run(num_steps=num_steps, lr=0.05, hyper_lr=0.02, unroll=0)
    with torch.no_grad():
        weights = log_weights(guide[SLOT].draw(2000)[SLOT + "_logits"]).exp()
        terms = [problem.expectations(solution.theta, solution.h, x, y) for _ in range(50)]
    log_likelihood, divergence = (float(torch.stack(t).mean()) for t in zip(*terms, strict=True))
    return {
        "objective": log_likelihood - meta.lam_l_prior * divergence,
        "log_likelihood": log_likelihood,
        "divergence": divergence,
        "draws": weights.numpy(),
    }


def plot(found: dict[tuple[str, float], dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8.2), layout="constrained")
    panels = figure.subplots(len(TEMPERATURES), len(REGIMES))
    corners = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
    for row, temperature in enumerate(TEMPERATURES):
        for column, regime in enumerate(REGIMES):
            axes, fitted = panels[row][column], found[regime, temperature]
            axes.fill(*corners.T, facecolor="#f3f5f8", edgecolor="#8b96a4", lw=1)
            points = fitted["draws"][:800] @ corners
            axes.scatter(*points.T, s=7, alpha=0.18, color="#0b6bcc", lw=0)
            mean = fitted["draws"].mean(0)
            axes.plot(*(mean @ corners), "X", ms=9, color="#c4500b", mec="white")
            for corner, name, weight in zip(corners, NAMES, mean, strict=True):
                above = corner[1] > 0
                axes.annotate(
                    f"{name}\n{weight:.2f}" if above else f"{name} {weight:.2f}",
                    corner,
                    (0, 6 if above else -6),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if above else "top",
                    fontsize=8,
                )
            axes.set(xlim=(-0.25, 1.25), ylim=(-0.15, 1.12), aspect="equal")
            axes.set_axis_off()
            if row == 0:
                axes.set_title(regime)
            if column == 0:
                axes.text(-0.24, 0.62, f"temperature {temperature:g}", rotation=90, va="center")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--starts", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, float], dict[str, Any]] = {}
    rows = []
    for temperature in TEMPERATURES:
        for regime, meta in REGIMES.items():
            fits = [fit(meta, temperature, s, arguments.steps) for s in range(arguments.starts)]
            best = max(fits, key=lambda fitted: fitted["objective"])
            found[regime, temperature] = best
            means = dict(zip(NAMES, best["draws"].mean(0), strict=True))
            numbers = {k: v for k, v in best.items() if k != "draws"}
            rows.append({"regime": regime, "temperature": temperature} | means | numbers)
            print(rows[-1], flush=True)
    command = f"python -m benchmarks.structure_toy --steps {arguments.steps}"
    table = pd.DataFrame(rows).assign(
        command=f"{command} --starts {arguments.starts}", seed=0, machine=machine_line()
    )
    table.round(4).to_csv(RESULTS / "structure_toy.csv", index=False)
    plot(found, RESULTS / "structure_toy.png")


if __name__ == "__main__":
    main()
