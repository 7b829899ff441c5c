"""What the defaults reach on the embedded data: ``python -m benchmarks.targets [--seeds 0 1 2]``.

Prints one row per method, data set and seed, with the figure to reach, and writes the same as CSV
to ``benchmarks/results/targets.csv``. With ``--mnist`` it also fits LeNet-300-100 to MNIST (from
``ZOO_DATA``) and puts the published figure beside what was reached.
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


def digits_rows(seed: int) -> list[dict[str, Any]]:
    """Group horseshoe on digits: its own prior, a normal prior, and the reference network."""
    dataset = load("digits", seed=seed)
    rows = []
    for label, options, goal in (
        ("default", {}, "accuracy >= 0.955, weights left <= 60 %"),
        ("Normal(0, 1)", {"priors": {"*.weight": "Normal(0, 1)"}}, "accuracy >= 0.96, none pruned"),
        (
            REFERENCE_NET,
            {"net": REFERENCE_NET},
            f"hand-written: {REFERENCE_ACCURACY[seed] if seed < 3 else 'not measured'}",
        ),
    ):
        found = measure("group_horseshoe", dataset, seed, **options)
        rows.append(
            {
                "method": "group_horseshoe",
                "data": "digits",
                "setting": label,
                "seed": seed,
                "accuracy": found["test.accuracy"],
                "accuracy pruned": found.get("test.pruned.accuracy", found["test.accuracy"]),
                "nll": found["test.nll"],
                "weights left %": found["weights_left_percent"],
                "seconds": found["seconds"],
                "to reach": goal,
            }
        )
    return rows


def diabetes_row(seed: int) -> dict[str, Any]:
    """Mean field on diabetes beside ridge regression, whose penalty is cross-validated."""
    dataset = load("diabetes", seed=seed)
    found = measure("mean_field", dataset, seed)
    return {
        "method": "mean_field",
        "data": "diabetes",
        "setting": "default",
        "seed": seed,
        "nll": found["test.nll"],
        "seconds": found["seconds"],
        "to reach": f"ridge {ridge_nll(dataset):.4f}, plus 2 % {1.02 * ridge_nll(dataset):.4f}",
    }


def ridge_nll(dataset: Dataset) -> float:
    """Negative log-likelihood per test row of ridge regression with Gaussian noise."""
    from sklearn.linear_model import RidgeCV

    ridge = RidgeCV(alphas=np.logspace(-3, 4, 50)).fit(dataset.X_train, dataset.y_train)
    variance = np.mean((dataset.y_train - ridge.predict(dataset.X_train)) ** 2)
    errors = dataset.y_test - ridge.predict(dataset.X_test)
    nll = 0.5 * math.log(2 * math.pi * variance) + np.mean(errors**2) / (2 * variance)
    return float(nll + math.log(dataset.schema.target_scale))


def mnist_row(seed: int, num_steps: int) -> dict[str, Any]:
    """LeNet-300-100 on MNIST, beside the figure of Louizos et al. (2017)."""
    found = measure("group_horseshoe", load("mnist"), seed, net="lenet300", num_steps=num_steps)
    return {
        "method": "group_horseshoe",
        "data": "mnist",
        "setting": f"lenet300, {num_steps} steps",
        "seed": seed,
        "accuracy": found["test.accuracy"],
        "accuracy pruned": found.get("test.pruned.accuracy", found["test.accuracy"]),
        "nll": found["test.nll"],
        "weights left %": found["weights_left_percent"],
        "seconds": found["seconds"],
        "to reach": "published: error 1.8 %, weights left 10.6 %",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--mnist", action="store_true", help="also fit MNIST, from ZOO_DATA")
    parser.add_argument("--mnist-steps", type=int, default=9400, help="about 20 epochs")
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        rows += [*digits_rows(seed), diabetes_row(seed)]
    name = "targets.csv"
    if arguments.mnist:
        rows.append(mnist_row(arguments.seeds[0], arguments.mnist_steps))
        name = "targets_mnist.csv"
    table = pd.DataFrame(rows)
    with pd.option_context("display.width", 200, "display.max_columns", None):
        print(table.round(4).to_string(index=False))
    table.round(6).to_csv(RESULTS / name, index=False)


if __name__ == "__main__":
    main()
