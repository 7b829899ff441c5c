"""``--robustness`` as a user runs it, and what the pages show of it."""

import json
import shutil

import pytest

import zoo
from zoo.errors import ConfigError
from zoo.fit.schema import read_tree
from zoo.fit.store import RunDirectory
from zoo.workflow.comparing import curves_of, write_comparison
from zoo.workflow.outputs import write_robustness

COLUMNS = {f"accuracy_under_{a}" for a in ("input_noise", "fgsm", "parameter_noise", "deletion")}


@pytest.fixture(scope="module")
def tried(tmp_path_factory, wine_run, command):
    """A run that was tried when it was fitted, and one that was tried afterwards."""
    folder = tmp_path_factory.mktemp("tried")
    outcome = command(
        folder, "fit", "mean_field", "--data", "wine", "--num-steps", 30, "--num-samples", 10,
        "--robustness", "--quiet", "--out", "at_once",
    )  # fmt: skip
    assert outcome.finished, outcome
    shutil.copytree(wine_run, folder / "later")
    outcome = command(folder, "report", "later", "--robustness")
    assert outcome.finished, outcome
    return folder


@pytest.mark.parametrize("name", ["at_once", "later"])
def test_tree_findings_and_report_have_the_curves(tried, name):
    run = tried / name
    tree = read_tree(run / "posterior.nc")
    assert {"fgsm_accuracy", "fgsm_nll", "deletion_accuracy"} <= set(tree["robustness"].data_vars)
    findings = json.loads((run / "findings.json").read_text())["findings"]
    checks = {finding["check"] for finding in findings}
    assert {"robustness.input_noise", "robustness.fgsm", "robustness.deletion"} <= checks
    page = (run / "report.html").read_text()
    assert '<section id="robustness">' in page
    assert "Accuracy, fast gradient sign method: from" in page  # the text for the blind
    assert "The higher the curve stays, the more robust is the fit" in page


def test_a_report_that_is_made_again_keeps_them(tried, command):
    assert command(tried, "report", "at_once").finished
    assert '<section id="robustness">' in (tried / "at_once" / "report.html").read_text()


def test_a_run_that_was_not_tried_has_no_section(wine_run):
    assert '<section id="robustness">' not in (wine_run / "report.html").read_text()
    assert curves_of(wine_run) == {}


def test_runs_are_compared(tried, command, wine_run):
    table = zoo.compare(tried / "at_once", tried / "later")
    assert set(table) >= COLUMNS
    assert table[sorted(COLUMNS)].notna().all().all()
    outcome = command(tried, "compare", "at_once", "later", "--out", "c.html")
    assert outcome.code == 0, outcome
    assert "accuracy_under_fgsm" in outcome.out
    page = (tried / "c.html").read_text()
    assert "Accuracy, fast gradient sign method: at_once: from" in page
    assert "; later: from" in page
    assert not COLUMNS & set(zoo.compare(wine_run))


def test_names_of_runs_are_escaped(tried, tmp_path):
    curves = {"<script>x</script>": curves_of(tried / "at_once")["at_once"], "b": []}
    write_comparison(zoo.compare(tried / "at_once"), tmp_path / "c.html", curves)
    assert "<script>x" not in (tmp_path / "c.html").read_text()


def test_a_run_from_arrays_needs_them_again(tmp_path, command, refused):
    import numpy as np

    X = np.random.default_rng(0).normal(size=(40, 3))
    zoo.fit(
        "mean_field", X, X[:, 0], num_steps=5, num_samples=4, compile="off", progress_bar=False,
        out=tmp_path / "run",
    )  # fmt: skip
    assert "names no data" in refused("report", "run", "--robustness")
    with pytest.raises(ConfigError, match="names no data"):
        write_robustness(RunDirectory(tmp_path / "run"))
