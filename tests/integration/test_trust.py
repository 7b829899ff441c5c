"""What a run says about itself: findings, truth, report, comparison, calibration."""

import json

import numpy as np
import pandas as pd
import pytest

import zoo
from zoo.diagnostics import Judgement
from zoo.errors import ConfigError
from zoo.fit.schema import read_tree
from zoo.truth.of_method import exact_posterior

LINEAR = ("--data", "linear", "--net", "linear", "--likelihood", "gaussian(noise=0.7)")


def findings_in(run):
    judgement = Judgement.from_json((run / "findings.json").read_text())
    return {finding.check: finding for finding in judgement.findings}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def judged(command, tmp_path_factory, cache):
    """A linear regression with its truth."""
    folder = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(cache))
        steps = ("--num-steps", "1500", "--num-samples", "300", "--quiet")
        outcome = command(folder, "fit", "mean_field", *LINEAR, *steps, "--truth", "--out", "run")
    assert outcome.finished, outcome
    return folder / "run", outcome


def test_a_run_with_truth_holds_findings_draws_and_report(judged):
    run, outcome = judged
    findings = findings_in(run)
    assert findings["sampling.rhat"].level == "ok"
    assert findings["truth.functions.mean"].level == "ok"
    assert "truth.parameters.sd" in findings
    truth = read_tree(run / "truth.nc")
    fit = read_tree(run / "posterior.nc")
    assert truth["functions"]["f"].shape[2:] == fit["functions"]["f"].shape[2:]
    assert truth.attrs["kind"] == "nuts"
    assert f"report  {run.name}/report.html" in outcome.out
    assert "verdict" in outcome.out


def test_the_truth_is_the_closed_form(judged):
    run, _ = judged
    fitted = zoo.load(run)
    data = zoo.data.load("linear", seed=0)
    exact = exact_posterior(fitted.assembly.model, data.X_train, data.y_train)
    truth = read_tree(run / "truth.nc")["posterior"]
    for name, (mean, sd) in exact.items():
        drawn = truth[name].to_numpy().reshape(-1, len(mean))
        error = sd / np.sqrt(1000)  # at least a quarter of 4000 draws are effective
        assert (np.abs(drawn.mean(0) - mean) < 5 * error).all(), name
        np.testing.assert_allclose(drawn.std(0), sd, rtol=0.1)


def test_the_log_joint_of_fit_and_truth_are_on_one_scale(judged):
    run, _ = judged
    fit, truth = (
        read_tree(run / name)["sample_stats"]["lp"] for name in ("posterior.nc", "truth.nc")
    )
    assert abs(float(fit.mean() - truth.mean())) < 3 * float(truth.std())


def test_a_report_is_made_again_from_what_is_stored(judged, command, tmp_path):
    run, _ = judged
    (run / "report.html").unlink()
    outcome = command(run.parent, "report", "run")
    assert outcome.finished, outcome
    assert "Variational fit and" in (run / "report.html").read_text()


def test_restarts_are_judged_and_shown(zoo_here, tmp_path):
    steps = ("--num-steps", "40", "--num-samples", "20", "--quiet")
    options = ("--restarts", "2", "--executor", "serial", "--out", "run")
    assert zoo_here("fit", "mean_field", *LINEAR, *steps, *options).finished
    run = tmp_path / "run"
    written = (run / "findings.json").read_text()
    assert "optimisation.restarts" in findings_in(run)
    (run / "report.html").unlink()
    assert zoo_here("report", "run").finished
    assert "<caption>Restarts</caption>" in (run / "report.html").read_text()
    assert (run / "findings.json").read_text() == written
    assert "restarts: 2" in (run / "config.yaml").read_text()


def test_an_executor_that_does_not_exist_is_refused_at_once(refused):
    message = refused("fit", "mean_field", *LINEAR, "--restarts", "1", "--executor", "threads")
    assert "unknown executor 'threads'. Accepted: serial" in message


def test_a_fit_of_ten_steps_is_refused(zoo_here, tmp_path):
    outcome = zoo_here("fit", "mean_field", *LINEAR, "--num-steps", "10", "--out", "run")
    assert outcome.code == 3
    assert "verdict fail" in outcome.out


def test_a_problem_too_large_for_nuts_is_a_finding_not_an_error(zoo_here, tmp_path):
    steps = ("--num-steps", "5", "--num-samples", "5")
    outcome = zoo_here(
        "fit",
        "mean_field",
        "--data",
        "digits",
        "--net",
        "mlp:64-40-10",
        *steps,
        "--truth",
        "--out",
        "r",
    )
    assert outcome.finished
    findings = findings_in(tmp_path / "r")
    assert findings["truth.accepted"].level == "unchecked"
    assert "3010 unknowns" in findings["truth.accepted"].message


def test_runs_side_by_side(judged, command, tmp_path):
    run, _ = judged
    steps = ("--num-steps", "60", "--num-samples", "50", "--quiet")
    other = run.parent / "other"
    prior = ("--prior", "Normal(0, 0.001)")
    assert command(
        run.parent, "fit", "mean_field", *LINEAR, *steps, *prior, "--out", other
    ).finished
    table = zoo.compare(run, other)
    assert list(table.index) == ["run", "other"]
    assert table.loc["run", "nll_difference"] == 0
    assert table.loc["other", "nll_difference"] == pytest.approx(
        table.loc["other", "nll"] - table.loc["run", "nll"], rel=1e-3
    )
    assert table.loc["other", "difference_error"] > 0
    assert table.loc["other", "priors"] == "*weight=Normal(loc=0, scale=0.001)"
    assert np.isfinite(table.loc["run", "distance_to_truth"])
    for name in ("c.csv", "c.json", "c.html"):
        outcome = command(tmp_path, "compare", run, other, "--out", name)
        assert outcome.code == 0, outcome
    assert len(pd.read_csv(tmp_path / "c.csv")) == 2
    assert json.loads((tmp_path / "c.json").read_text())[0]["run"] == "run"
    page = (tmp_path / "c.html").read_text()
    assert "<table" in page
    assert "Differences of negative log-likelihood per held-out row: run 0 ± 0; other" in page
    assert "Accepted endings" in command(tmp_path, "compare", run, "--out", "c.xls").err


def test_runs_with_other_held_out_rows_have_no_difference(judged, command):
    run, _ = judged
    other = run.parent / "seeded"
    steps = ("--num-steps", "20", "--num-samples", "20", "--quiet", "--seed", "3")
    assert command(run.parent, "fit", "mean_field", *LINEAR, *steps, "--out", other).finished
    table = zoo.compare(run, other)
    assert table["nll_difference"].isna().sum() == 1


def test_truth_of_a_method_is_shown_and_checked(judged, command, cache, monkeypatch):
    run, _ = judged
    monkeypatch.setenv("ZOO_CACHE", str(cache))
    outcome = command(run.parent, "truth", "mean_field", *LINEAR, "--quiet", "--executor", "serial")
    assert outcome.code == 0, outcome
    assert "truth   accepted" in outcome.out
    assert "closed form: largest difference" in outcome.out


def test_calibration_refuses_what_it_cannot_do(refused):
    assert "num_simulations must be at least 10" in refused(
        "sbc", "mean_field", "--num-simulations", "3"
    )
    assert "unknown engine" in refused("sbc", "mean_field", "--engine", "gibbs")
    assert "name a method" in refused("sbc", "--data", "diabetes")
    assert "Accepted endings" in refused("sbc", "mean_field", "--plot", "ranks.txt")
    assert "fitted to the data" in refused("sbc", "empirical_bayes")
    assert "is improper" in refused("sbc", "sparse_vd")
    with pytest.raises(ConfigError, match="at least one run"):
        zoo.compare()


def test_calibration_repeats_the_settings_of_a_run(judged, command):
    run, _ = judged
    plot = run.parent / "ranks.png"
    few = ("--num-simulations", "10", "--num-steps", "20", "--executor", "serial", "--quiet")
    outcome = command(
        run.parent, "sbc", "--config", run / "config.yaml", *few, "--plot", plot, "--seed", "1"
    )
    assert outcome.code in (0, 3), outcome
    assert plot.stat().st_size > 10_000
    assert "0.weight[7]: ranks are" in outcome.out
    assert "All 10 simulated data sets could be fitted." in outcome.out
    assert "verdict" in outcome.out


@pytest.mark.slow
@pytest.mark.timeout(3600)  # seven minutes of one core
def test_ranks_of_a_linear_regression_are_uniform():
    result = zoo.calibrate("mean_field", engine="nuts", num_simulations=100, progress_bar=False)
    assert {"0.weight[0]", "0.bias[0]", "output[0]", "log_likelihood"} <= set(result.ranks)
    assert all(finding.level != "fail" for finding in result.findings)
    assert min(test.p_value for test in result.tests.values()) > 0.001
