"""One plot per method: ``python -m benchmarks.gallery [METHOD ...]``.

Methods that prune weights or units are fitted to digits (network 64-50-10). Their plots show the
first layer, with pruned weights in white, and the pruning scores. Methods whose truth has a closed
form are fitted to diabetes, and their intervals are compared with the exact ones. The plots of the
others show what they learn. Plots are written to ``docs/gallery/``.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

import zoo
from zoo.data import from_arrays, load
from zoo.infer.pruning.codebooks import quantized_view
from zoo.truth.of_method import exact_posterior
from zoo.workflow.result import Fit

FOLDER = Path(__file__).parent.parent / "docs" / "gallery"
STEPS = 1000
BLUE, ORANGE, GREY = "#3b6ea5", "#d08770", "#9a9a9a"


def digits_fit(method: str, **options: Any) -> Fit:
    """Fit a method to digits."""
    return zoo.fit(method, data="digits", seed=0, num_steps=STEPS, progress_bar=False, **options)


def two_panels(title: str) -> tuple[Figure, Any, Any]:
    """Return a figure with two panels side by side."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, left, right


def draw_weights(axes: Any, weights: Any, title: str) -> None:
    """Draw the first layer: units down, pixels across; zero is white."""
    size = float(np.quantile(np.abs(weights), 0.995)) or 1.0
    axes.imshow(weights, cmap="RdBu", vmin=-size, vmax=size, aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel="pixel", ylabel="hidden unit")


def pruning(method: str) -> Figure:
    """Draw pruned weights of the first layer and the pruning scores."""
    fitted = digits_fit(method)
    dataset = load("digits", seed=0)
    view = fitted.groups(dataset)
    draws = view.prune(fitted.draws.slots)
    name = next(n for n in view.groups if n.startswith("0."))
    figure, left, right = two_panels(f"{method}, digits: {view.weights_left_percent:.0f} % left")
    if name.endswith("input"):
        kept = draws[name].mean(0).reshape(8, 8).numpy()
        left.imshow(kept, cmap="Blues", vmin=0)
        left.set(title="mean multiplier of each pixel", xticks=[], yticks=[])
    else:
        draw_weights(left, draws[name].mean(0).numpy(), "first layer, pruned")
    shown = {slot: groups for slot, groups in view.groups.items() if not slot.endswith("bias")}
    for color, (slot, groups) in zip((BLUE, ORANGE), shown.items(), strict=False):
        right.hist(groups.scores, bins=40, color=color, alpha=0.6, label=slot, density=True)
        right.axvline(groups.threshold, color=color, linestyle="--", linewidth=1)
    right.set(title="scores, and where they are cut", xlabel="larger: noise", yticks=[])
    right.legend(fontsize=8)
    return figure


def quantized(method: str) -> Figure:
    """Draw the weights of the first layer before and after quantization."""
    fitted = digits_fit(method)
    view = quantized_view(fitted.assembly.model, fitted.assembly.guide)
    assert view is not None
    words, means = view.values["0.weight"].numpy(), view.means["0.weight"].numpy()
    figure, left, right = two_panels(f"{method}, digits: {view.nonzero_percent:.0f} % not zero")
    draw_weights(left, words, "first layer, ternary")
    right.hist(means.ravel(), bins=80, color=GREY)
    for word in np.unique(words):
        right.axvline(word, color=ORANGE, linestyle="--", linewidth=1)
    right.set(title="means, and the code words", xlabel="weight", yticks=[], yscale="log")
    return figure


def intervals(method: str) -> Figure:
    """Draw the weights of a linear regression and their exact posterior."""
    problem = {"data": "diabetes", "net": "mlp:10-1", "likelihood": "gaussian(noise=0.7)"}
    fitted = zoo.fit(method, seed=0, progress_bar=False, **problem)
    dataset = load("diabetes", seed=0)
    exact = exact_posterior(fitted.assembly.model, dataset.X_train, dataset.y_train)
    assert exact is not None
    name = next(name for name in exact if name.endswith("weight"))
    draws = fitted.draws.slots[name].flatten(1)
    mean, sd = exact[name]
    figure, axes = plt.subplots(figsize=(7.5, 3), layout="constrained")
    at = np.arange(len(mean))
    axes.errorbar(at - 0.12, mean, 2 * sd, fmt="o", color=GREY, label="exact")
    own = draws.mean(0).numpy(), 2 * draws.std(0).numpy()
    axes.errorbar(at + 0.12, *own, fmt="o", color=BLUE, label=method)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(
        title=f"{method}: diabetes, linear, two standard deviations",
        xlabel="input",
        ylabel="weight",
        xticks=at,
    )
    axes.legend(fontsize=8, loc="lower right")
    return figure


def degrees(method: str) -> Figure:
    """Draw the evidence of polynomials and their best fit."""
    from benchmarks.evidence import DEGREES, NOISE, X, Y
    from zoo.infer.evidence import evidence_table

    table = evidence_table(X, Y, DEGREES, noise_precision=NOISE**-2, resolution=0.1)
    figure, left, right = two_panels(f"{method}: which polynomial?")
    left.plot(table.index, table.maximum_likelihood, "--", color=GREY, label="maximum likelihood")
    left.plot(table.index, table.log_evidence, "o-", color=BLUE, label="evidence")
    left.set(xlabel="degree", ylabel="nats", ylim=(-15, 8))
    left.legend(fontsize=8)
    grid = np.linspace(-1.1, 1.1, 200)
    right.plot(X, Y, "ko", markersize=4)
    for degree, color in ((int(table.log_evidence.idxmax()), BLUE), (max(DEGREES), GREY)):
        curve = np.polynomial.Polynomial.fit(X, Y, degree)
        right.plot(grid, curve(grid), color=color, label=f"degree {degree}")
    right.set(xlabel="x", ylim=(-2, 2))
    right.legend(fontsize=8)
    return figure


def rates(method: str) -> Figure:
    """Draw the dropout rates that were learned, layer by layer, unit by unit."""
    fitted = digits_fit(method, options={"share": "unit"})
    guide = fitted.assembly.guide
    figure, left, right = two_panels(f"{method}, digits: a rate for each unit")
    first, second = (guide[name].dropout_rates().detach().numpy() for name in guide.names[:2])
    image = left.imshow(first.reshape(8, 8), cmap="Blues_r", vmin=0, vmax=0.5)
    figure.colorbar(image, ax=left, shrink=0.8)
    left.set(title="pixels", xticks=[], yticks=[])
    right.hist(second.ravel(), bins=25, range=(0, 0.5), color=BLUE)
    right.set(title="hidden units", xlabel="dropout rate", ylabel="units")
    return figure


def entropies(method: str) -> Figure:
    """Draw the predictive entropy for seen and for unseen digits."""
    dataset = load("digits", seed=0)
    seen = np.flatnonzero(dataset.y_train < 5)[:720]  # a multiple of the batch size
    known = from_arrays(
        dataset.X_train[seen], dataset.y_train[seen], task="classification", test_fraction=0.0
    )
    torch.manual_seed(0)
    fitted = zoo.fit(method, data=known, seed=0, num_steps=STEPS, progress_bar=False)
    figure, left, right = two_panels(f"{method}, digits 0 to 4 known")
    grid = np.linspace(0, np.log(5), 300)
    model = fitted.assembly.model.eval()
    for axes, rows, title in (
        (left, dataset.y_test >= 5, "digits 5 to 9"),
        (right, dataset.y_test < 5, "digits 0 to 4"),
    ):
        x = dataset.X_test[rows]
        with torch.no_grad():
            plain = model.net(torch.as_tensor(x, dtype=torch.float32)).softmax(-1)
        drawn = torch.as_tensor(fitted.predict_proba(x))
        for p, color, label in ((plain, GREY, "running averages"), (drawn, BLUE, method)):
            entropy = np.sort(torch.special.entr(p).sum(-1).numpy())
            share = np.searchsorted(entropy, grid, side="right") / len(entropy)
            axes.plot(grid, share, color=color, label=label)
        axes.set(title=title, xlabel="entropy, nats", ylim=(0, 1.02))
    left.set_ylabel("share of test rows")
    right.legend(fontsize=8, loc="lower right")
    return figure


PICTURES: dict[str, Callable[[str], Figure]] = {
    "empirical_bayes": pruning,
    "evidence": degrees,
    "graves": pruning,
    "group_horseshoe": pruning,
    "group_normal_jeffreys": pruning,
    "laplace": intervals,
    "mean_field": intervals,
    "quantized": quantized,
    "sparse_vd": pruning,
    "stochastic_batch_norm": entropies,
    "structured_bp": pruning,
    "variational_dropout": rates,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="all by default")
    methods = parser.parse_args().methods or list(PICTURES)
    unknown = sorted(set(methods) - set(PICTURES))
    if unknown:
        parser.error(f"no picture of {unknown[0]!r}; there are: {', '.join(PICTURES)}")
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for method in methods:
        figure = PICTURES[method](method)
        figure.savefig(FOLDER / f"{method}.png", dpi=80)
        plt.close(figure)
        print(f"docs/gallery/{method}.png", flush=True)


if __name__ == "__main__":
    main()
