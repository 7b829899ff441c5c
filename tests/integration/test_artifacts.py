"""The posterior as ArviZ sees it, and the page."""

import html.parser
import io
import re

import arviz_stats
import numpy as np
import pandas as pd
import pytest

import zoo
from zoo.fit.schema import read_tree

HOSTILE = "<script>alert(1)</script>"


class Page(html.parser.HTMLParser):
    """Collects tags, and attributes that would load something."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)


def parse(run):
    text = (run / "report.html").read_text()
    page = Page()
    page.feed(text)
    return text, page


@pytest.fixture(scope="module")
def tree(wine_run):
    return read_tree(wine_run / "posterior.nc")


def test_tree_has_the_groups_of_the_schema(tree):
    assert set(tree.children) == {
        "posterior",
        "prior",
        "sample_stats",
        "log_likelihood",
        "log_prior",
        "posterior_predictive",
        "prior_predictive",
        "observed_data",
        "constant_data",
        "functions",
        "held_out",
        "optimization",
        "leave_one_out",
        "references",
        "prior_statistics",
        "rows",
        "data",
        "start",
    }
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "obs_id")
    assert tree["log_likelihood"]["y"].shape == (1, 10, 142)
    assert tree["posterior_predictive"]["y"].shape == (1, 10, 142)
    assert tree["observed_data"]["y"].dims == ("obs_id",)
    assert tree["optimization"]["loss"].shape == (1, 30)
    assert tree["optimization"]["gradient_norm"].shape == (1, 3)
    assert tree["functions"]["f"].shape == (1, 10, 32, 3)
    assert tree["held_out"]["probability"].shape == (36, 3)
    assert tree["constant_data"]["x"].shape == (142, 13)
    assert set(tree["sample_stats"].data_vars) == {"log_prior", "log_q", "lp"}
    np.testing.assert_allclose(
        tree["sample_stats"]["lp"] - tree["log_likelihood"]["y"].sum("obs_id"),
        sum(tree["log_prior"].data_vars.values()),
        rtol=1e-4,
    )
    assert tree.attrs["method"] == "group_horseshoe"


def test_tree_holds_the_draws_of_the_fit(tree, wine_run):
    fitted = zoo.load(wine_run)
    for name, values in (fitted.draws.sites | fitted.draws.slots).items():
        assert (tree["posterior"][name].values[0] == values.numpy()).all(), name


@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning:arviz_stats")
def test_arviz_computes_loo_and_a_summary(zoo_here, tmp_path):
    options = ("--net", "linear", "--num-steps", "100", "--num-samples", "200", "--lr", "0.05")
    assert zoo_here("fit", "mean_field", "--data", "linear", *options, "--out", "run").finished
    tree = read_tree(tmp_path / "run/posterior.nc")
    loo = arviz_stats.loo(tree)
    assert loo.n_data_points == 160
    assert 0 < loo.p < 30
    summary = arviz_stats.summary(tree, var_names=["0.weight", "0.bias"], kind="stats")
    assert len(summary) == 9


def test_page_loads_nothing(wine_run):
    text, page = parse(wine_run)
    assert all(address.startswith("#") for address in page.addresses)
    assert not page.tags & {"link", "iframe", "object", "embed", "img", "form"}
    assert "://" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_page_shows_scores_priors_and_configuration(wine_run):
    text, _ = parse(wine_run)
    for fragment in (
        "group_horseshoe on wine",
        "accuracy",
        "GroupHorseshoe(scale=1e-05, group=auto)",
        "weights left after pruning",
        "ELBO in nats over 30 steps",
        "data_sha256",
    ):
        assert fragment in text.replace("<wbr>", "")


def test_hostile_names_are_escaped(zoo_here, tmp_path, flowers):
    name = f"{HOSTILE.replace('/', '')}.csv"
    frame = flowers.rename(columns={"kind": HOSTILE, "height": f'"{HOSTILE}'})
    frame[HOSTILE] = frame[HOSTILE].replace({"rose": f"'{HOSTILE}", "aster": "</code>"})
    frame["{{ 7 * 7 }}"] = range(len(frame))
    frame.to_csv(tmp_path / name, index=False)
    options = ("--num-steps", "3", "--num-samples", "5", "--ignore", "{{ 7 * 7 }}")
    outcome = zoo_here("fit", "mean_field", "--data", name, "--target", HOSTILE, *options)
    assert outcome.finished, outcome
    text, _ = parse(tmp_path / "runs/1")
    assert text.count("<script") == text.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in text
    assert "{{ 7 * 7 }}" in text
    predicted = zoo_here("predict", "runs/1", name)
    columns = pd.read_csv(io.StringIO(predicted.out)).columns
    assert f"probability of '{HOSTILE}" in columns


def test_damaged_posterior_is_explained(tmp_path, wine_run):
    content = (wine_run / "posterior.nc").read_bytes()
    for name, part in (("empty", b""), ("half", content[: len(content) // 2]), ("text", b"x" * 99)):
        (tmp_path / name).write_bytes(part)
        with pytest.raises(zoo.errors.StoreError, match="cannot read the posterior"):
            read_tree(tmp_path / name)
    with pytest.raises(zoo.errors.StoreError, match="cannot read the posterior"):
        read_tree(tmp_path / "missing.nc")
