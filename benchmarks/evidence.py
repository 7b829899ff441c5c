"""Selection of a polynomial degree by likelihood, evidence, ELBO and code length.

``python -m benchmarks.evidence``. Nine fixed points, polynomials of degree 0 to 7, coefficients
N(0, 1), noise N(0, 0.2²). For every degree the methods of the zoo are fitted: ``evidence`` (exact),
``laplace``, and ``mean_field`` with the full-rank and the factorised guide. Writes
``benchmarks/results/evidence.csv`` and ``.png``.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import zoo
from benchmarks.speed import machine_line
from zoo.data import from_arrays
from zoo.infer.evidence import Array, LinearModel, evidence_table, polynomial_features
from zoo.network.nets import polynomial
from zoo.workflow.result import Fit

RESULTS = Path(__file__).parent / "results"
X = np.linspace(-1, 1, 9)
Y = np.array([-0.9, -0.6, -0.7, -0.1, 0.1, 0.2, 0.6, 0.9, 0.8])
DEGREES = range(8)
NOISE = 0.2
#: The target is given to one decimal.
RESOLUTION = 0.1


class Constant(nn.Module):
    """The polynomial of degree zero."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(*x.shape[:-1], 1)


def fit(method: str, degree: int, **options: Any) -> Fit:
    """Fit one method to the points."""
    return zoo.fit(
        method,
        data=from_arrays(X[:, None], Y, task="regression"),
        net=polynomial(1, degree) if degree else Constant(),
        likelihood=f"gaussian(noise={NOISE})",
        dtype="float64",
        seed=0,
        batch_size=len(X),
        progress_bar=False,
        **options,
    )


def ordered(degree: int) -> list[int]:
    """Return the positions of the coefficients of increasing powers among weights and bias."""
    return [degree, *range(degree)]


def moments(fitted: Fit, degree: int) -> tuple[Array, Array]:
    """Return mean and covariance of the coefficients under a fitted Gaussian."""
    guide, order = fitted.assembly.guide, ordered(degree)
    if fitted.config.guide == "full_rank":
        posterior = guide.auto.get_posterior()
        mean, covariance = posterior.loc, posterior.covariance_matrix
    else:
        sites = [part[name] for part in guide.by_name().values() for name in part.names]
        mean = torch.cat([site.loc.flatten() for site in sites])
        covariance = torch.cat([(2 * site.log_scale).exp().flatten() for site in sites]).diag()
    mean, covariance = mean.detach().numpy(), covariance.detach().numpy()
    return mean[order], covariance[np.ix_(order, order)]


def fitted_row(degree: int) -> dict[str, float]:
    """Return the results of the zoo's methods for one degree."""
    model = LinearModel(polynomial_features(X, degree), Y, 1.0, NOISE**-2)
    training = {"lr": 0.03, "schedule": "cosine", "kl_warmup": 0.0, "num_steps": 1000}
    row = {
        "evidence (exact)": fit("evidence", degree).assembly.guide.metrics()["log_evidence"],
        "evidence (laplace)": fit("laplace", degree, **training).assembly.guide.metrics()[
            "log_evidence"
        ],
    }
    for name, guide in (("full rank", "full_rank"), ("factorised", "factorised")):
        fitted = fit("mean_field", degree, guide=guide, num_particles=4, **training)
        row[f"elbo ({name})"] = model.elbo(*moments(fitted, degree))
    return row


def plot(table: pd.DataFrame, path: Path) -> None:
    """Plot log densities and code lengths over the degree; the best of each curve is marked."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    curves = {
        "maximum_likelihood": ("maximum likelihood", "0.5", "--"),
        "evidence (exact)": ("evidence, exact", "C0", "-"),
        "evidence (laplace)": ("evidence, Laplace", "C1", ":"),
        "elbo (full rank)": ("ELBO, full rank", "C2", "-."),
        "elbo (factorised)": ("ELBO, factorised", "C3", "-"),
    }
    for column, (label, color, style) in curves.items():
        _curve(left, table[column], label, color, style, table[column].idxmax())
    left.set(xlabel="degree", ylabel="nats", ylim=(-15, 8), title="Log density of the nine points")
    codes = {
        "evidence_bits": ("evidence (prequential)", "C0", "-"),
        "bits_back_bits": ("bits back, factorised", "C3", "-"),
        "two_part_bits": ("two parts, rounded weights", "C4", "-."),
        "plug_in_bits": ("prequential, plug-in", "C5", "--"),
    }
    for column, (label, color, style) in codes.items():
        _curve(right, table[column], label, color, style, table[column].idxmin())
    right.set(
        xlabel="degree", ylabel="bits", ylim=(25, 75), title="Code length at a resolution of 0.1"
    )
    for axes in (left, right):
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def _curve(
    axes: Any, column: "pd.Series[float]", label: str, color: str, style: str, best: Any
) -> None:
    axes.plot(column.index, column, style, color=color, label=label)
    axes.plot([best], [column[best]], "o", color=color)


def main() -> None:
    torch.set_num_threads(1)
    closed = evidence_table(X, Y, DEGREES, noise_precision=NOISE**-2, resolution=RESOLUTION)
    fits = pd.DataFrame([fitted_row(degree) for degree in DEGREES], index=closed.index)
    table = fits.join(closed)
    with pd.option_context("display.width", 220, "display.max_columns", None):
        print(table.round(3).to_string())
    print(
        "best:",
        {c: int(table[c].idxmax()) for c in table if "bits" not in c and c != "left_out_rmse"},
    )
    print("shortest:", {c: int(table[c].idxmin()) for c in table if "bits" in c})
    plot(table, RESULTS / "evidence.png")
    table = table.assign(command="python -m benchmarks.evidence", seed=0, machine=machine_line())
    table.round(6).to_csv(RESULTS / "evidence.csv")


if __name__ == "__main__":
    main()
