"""A comparison has the numbers of its runs, and errors of differences on the same rows."""

import numpy as np
import pandas as pd
import pytest

import zoo
from zoo.data import from_arrays
from zoo.fit import store
from zoo.fit.schema import read_tree
from zoo.fit.store import RunDirectory
from zoo.workflow.comparing import FINDINGS, compare
from zoo.workflow.outputs import read_judgement


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs that differ in their number of steps."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=60)
    dataset = from_arrays(X[:40], y[:40], X_test=X[40:], y_test=y[40:], task="regression")
    folder = tmp_path_factory.mktemp("runs")
    options = {"net": "linear", "num_samples": 200, "progress_bar": False}
    for steps in (2, 60):
        zoo.fit(
            "mean_field", data=dataset, num_steps=steps, out=folder / f"steps{steps}", **options
        )
    return [folder / "steps2", folder / "steps60"]


def test_rows_hold_metrics_and_the_values_of_findings(runs):
    table = compare(*runs)
    assert sorted(table.index) == ["steps2", "steps60"]
    for run in runs:
        row, directory = table.loc[run.name], RunDirectory(run)
        metrics = directory.read_json(store.METRICS)
        assert (row["nll"], row["rmse"]) == (metrics["test.nll"], metrics["test.rmse"])
        values = {finding.check: finding.value for finding in read_judgement(directory).findings}
        assert row["khat"] == values[FINDINGS["khat"]]
        assert pd.isna(row["sd_to_truth"])  # there is no truth


def test_differences_are_to_the_best_run_on_the_same_rows(runs):
    table = compare(*runs)
    best, other = table.index
    assert table["nll"].is_monotonic_increasing
    densities = {
        run.name: read_tree(run / store.POSTERIOR)["held_out"]["log_density"].to_numpy()
        for run in runs
    }
    gap = densities[best] - densities[other]
    assert table.loc[best, "nll_difference"] == 0
    assert table.loc[other, "nll_difference"] == pytest.approx(gap.mean())
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    assert table.loc[other, "difference_error"] == pytest.approx(error)
