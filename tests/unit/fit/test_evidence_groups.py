"""The groups of a real fit from which `zoo.diagnostics` judges whether it is any good."""

import json

import numpy as np
import pytest
import torch

import zoo
from tests.unit.diagnostics.synthetic_trees import the
from zoo.data import from_arrays
from zoo.diagnostics import diagnose, judge
from zoo.fit.schema import read_tree

GROUPS = ("references", "data", "rows", "prior_statistics", "start")


def data(task="regression", *, rows=120, seed=0, **options):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    signal = x @ [1.0, -1.0, 1.0]
    y = {
        "regression": signal + 0.5 * rng.normal(size=rows),
        "classification": (signal + rng.logistic(size=rows) > 0).astype(int),
        "counts": rng.poisson(np.exp(0.4 * signal)),
    }[task]
    return from_arrays(x, y, task=task, test_fraction=0.3, seed=seed, **options)


def fit(dataset, **options):
    settings = {"net": torch.nn.Linear(3, 1), "num_steps": 300, "lr": 0.05, "num_samples": 100}
    return zoo.fit("mean_field", data=dataset, progress_bar=False, **(settings | options))


@pytest.mark.parametrize("task", ["regression", "classification", "counts"])
def test_a_good_fit_passes_every_check_of_its_use(task):
    options = {"likelihood": "bernoulli"} if task == "classification" else {}
    tree = fit(data(task), **options).tree()
    assert set(GROUPS) <= set(tree.children)
    themes = ("usefulness", "data", "prior")
    own = [
        finding
        for finding in diagnose(tree)
        if finding.check.split(".")[0] in themes
        or finding.check in ("optimisation.start", "predictive.prior_check")
    ]
    assert len(own) == 14
    assert {finding.check for finding in own if finding.level != "ok"} == set()


def test_densities_and_errors_are_those_of_the_metrics():
    fitted = fit(data(standardize=True))
    tree = fitted.tree()
    metrics = json.loads(tree.attrs["metrics"])
    group = tree["references"].to_dataset().mean("row")
    scale = fitted.schema.target_scale
    for name, key in (("fit", "test"), ("linear", "reference.linear")):
        one = group.sel(reference=name)
        assert -float(one["log_density"]) == pytest.approx(metrics[f"{key}.nll"], rel=1e-6)
        assert np.sqrt(float(one["error"])) * scale == pytest.approx(
            metrics[f"{key}.rmse"], rel=1e-5
        )


def test_a_learning_rate_that_is_far_too_small_leaves_the_posterior_at_its_start():
    findings = diagnose(fit(data(), lr=1e-6).tree())
    assert the(findings, "optimisation.start").level == "fail"
    assert the(findings, "usefulness.skill").level == "fail"


def test_a_prior_a_thousand_times_too_narrow_fails_for_predictions_and_parameters():
    fitted = fit(data(), priors={"*": "Normal(0, 0.001)"}, num_steps=500)
    judgement = judge(fitted.tree())
    assert the(judgement.findings, "predictive.prior_check").level == "fail"
    assert the(judgement.findings, "prior.holds_back").level == "fail"
    assert judgement.on("predict").verdict.level == "fail"
    assert judgement.on("parameters").verdict.level == "fail"


def test_a_fit_without_test_rows_says_that_its_use_was_not_checked():
    rng = np.random.default_rng(0)
    dataset = from_arrays(rng.normal(size=(50, 3)), rng.normal(size=50))
    findings = diagnose(fit(dataset, num_steps=20).tree())
    assert the(findings, "usefulness.skill").level == "unchecked"
    assert the(findings, "data.leak").level == "info"


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_that_was_removed_is_not_checked(group):
    tree = fit(data(), num_steps=20).tree()
    before = {finding.check for finding in diagnose(tree)}
    del tree[group]
    after = diagnose(tree)
    gone = {
        "references": {"usefulness.skill", "usefulness.density"},
        "data": {"data.size", "data.scale", "data.copies", "data.leak", "data.shift"},
        "rows": {"data.outliers", "data.tails"},
        "prior_statistics": set(),  # the same check reads the group prior_predictive
        "start": {"optimisation.start"},
    }[group]
    assert gone <= before
    assert {finding.check for finding in after if finding.level == "unchecked"} >= gone


def test_groups_survive_storage(tmp_path):
    fit(data(), num_steps=20, out=tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "reference.kernel.rmse" in metrics
    stored = read_tree(tmp_path / "run" / "posterior.nc")
    for group in GROUPS:
        assert group in stored.children
    page = (tmp_path / "run" / "report.html").read_text()
    assert "linear reference" in page
