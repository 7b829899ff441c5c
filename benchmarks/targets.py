"""Results of the defaults on the embedded data: ``python -m benchmarks.targets [--seeds 0 1 2]``.

Prints one row per method, data set and seed, with the target, and writes the same as CSV
to ``benchmarks/results/targets.csv``. With ``--mnist`` it fits LeNet-300-100 to MNIST (from
``ZOO_DATA``) instead, and compares with the published result.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import zoo
from zoo.data import Dataset, load

RESULTS = Path(__file__).parent / "results"

#: A network and split as in the reference measurements below: 64-100-50-10, 80/20, seeds 0, 1, 2.
REFERENCE_NET = "mlp:64-100-50-10"
#: Test accuracy of a hand-written group horseshoe with local reparameterization, 400 epochs.
REFERENCE_ACCURACY = (0.956, 0.956, 0.961)


def measure(method: str, dataset: Dataset, seed: int, **options: Any) -> dict[str, float]:
    """Fit with the defaults and return the metrics of the run."""
    fitted = zoo.fit(method, data=dataset, seed=seed, **options)
    return fitted.metrics(dataset, fitted.groups(dataset))


def row(
    method: str, data: str, setting: str, seed: int, found: dict[str, float], goal: str
) -> dict[str, Any]:
    """Return one row of the table, without the scores that the task does not have."""
    accuracy = found.get("test.accuracy")
    return {
        "method": method,
        "data": data,
        "setting": setting,
        "seed": seed,
        "accuracy": accuracy,
        "accuracy pruned": found.get("test.pruned.accuracy", accuracy),
        "nll": found["test.nll"],
        "weights left %": found["weights_left_percent"],
        "seconds": found["seconds"],
        "to reach": goal,
    }


def digits_rows(seed: int) -> list[dict[str, Any]]:
    """Group horseshoe on digits: its own prior, a normal prior, and the reference network."""
    dataset = load("digits", seed=seed)
    reference = REFERENCE_ACCURACY[seed] if seed < len(REFERENCE_ACCURACY) else "not measured"
    settings: list[tuple[str, dict[str, Any], str]] = [
        ("default", {}, "accuracy >= 0.955, weights left <= 60 %"),
        ("Normal(0, 1)", {"priors": {"*.weight": "Normal(0, 1)"}}, "accuracy >= 0.96, none pruned"),
        (REFERENCE_NET, {"net": REFERENCE_NET}, f"hand-written: {reference}"),
    ]
    return [
        row("group_horseshoe", "digits", label, seed, found, goal)
        for label, options, goal in settings
        for found in [measure("group_horseshoe", dataset, seed, **options)]
    ]


def diabetes_row(seed: int) -> dict[str, Any]:
    """Mean field on diabetes, compared with ridge regression with a cross-validated penalty."""
    dataset = load("diabetes", seed=seed)
    ridge = ridge_nll(dataset)
    goal = f"ridge {ridge:.4f}, plus 2 % {1.02 * ridge:.4f}"
    found = measure("mean_field", dataset, seed)
    return row("mean_field", "diabetes", "default", seed, found, goal)


def ridge_nll(dataset: Dataset) -> float:
    """Negative log-likelihood per test row of ridge regression with Gaussian noise."""
    from sklearn.linear_model import RidgeCV

    ridge = RidgeCV(alphas=np.logspace(-3, 4, 50)).fit(dataset.X_train, dataset.y_train)
    variance = np.mean((dataset.y_train - ridge.predict(dataset.X_train)) ** 2)
    errors = dataset.y_test - ridge.predict(dataset.X_test)
    nll = 0.5 * math.log(2 * math.pi * variance) + np.mean(errors**2) / (2 * variance)
    return float(nll + math.log(dataset.schema.target_scale))


def mnist_row(seed: int, num_steps: int) -> dict[str, Any]:
    """LeNet-300-100 on MNIST, compared with the result of Louizos et al. (2017)."""
    found = measure("group_horseshoe", load("mnist"), seed, net="lenet300", num_steps=num_steps)
    goal = "published: error 1.8 %, weights left 10.6 %"
    return row("group_horseshoe", "mnist", f"lenet300, {num_steps} steps", seed, found, goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--mnist", action="store_true", help="fit MNIST instead, from ZOO_DATA")
    parser.add_argument("--mnist-steps", type=int, default=9400, help="9400 are about 20 epochs")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        if arguments.mnist:
            rows.append(mnist_row(seed, arguments.mnist_steps))
        else:
            rows += [*digits_rows(seed), diabetes_row(seed)]
    table = pd.DataFrame(rows)
    with pd.option_context("display.width", 200, "display.max_columns", None):
        print(table.round(4).to_string(index=False))
    name = "targets_mnist.csv" if arguments.mnist else "targets.csv"
    table.round(6).to_csv(RESULTS / name, index=False)


if __name__ == "__main__":
    main()
