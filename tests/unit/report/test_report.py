import base64
import hashlib
import html.parser
import json
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import xarray
from scipy import stats

from tests.unit.diagnostics.synthetic_trees import Regression, tree_of
from tests.unit.report.report_trees import (
    DOLLARS,
    HOSTILE,
    LONG,
    attributes,
    classification,
    hostile,
    regression,
)
from zoo.diagnostics import Finding, Judgement, diagnose
from zoo.diagnostics.sensitivity import power_scaling_findings, power_scaling_table
from zoo.report import render_comparison, render_report
from zoo.report.figures.canvas import VARIABLES, Picture, panel, short
from zoo.report.figures.densities import density
from zoo.report.figures.forest import forest_picture, parameter_rows
from zoo.report.figures.sensitivity import prior_picture
from zoo.report.figures.training import _limits
from zoo.report.tables import plain, restart_table, score_table, total_table
from zoo.report.templating import _placed

MAX_BYTES = 3 * 10**6
NOTHING = Judgement((), ())
ALL_SECTIONS = [
    "fitted",
    "scores",
    "training",
    "posterior",
    "calibration",
    "predictions",
    "sparsity",
    "sensitivity",
    "checks",
    "repeat",
]


class Page(html.parser.HTMLParser):
    """What a page is made of: tags, identifiers, addresses, text outside of scripts and styles."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.ids, self.addresses, self.labels = [], [], [], []
        self.text, self.sections, self._skipped = "", [], ""
        self.source = source
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert not any(name.startswith("on") for name in values)
        self.tags.append(tag)
        self._skipped = tag if tag in ("script", "style") else ""
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "section" and "id" in values:
            self.sections.append(values["id"])
        if tag == "svg":
            self.labels.append(values["aria-label"])
        self.addresses += [values[name] for name in ("src", "href", "data") if name in values]

    def handle_endtag(self, tag):
        self._skipped = ""

    def handle_data(self, data):
        if not self._skipped:
            self.text += data

    @property
    def drawings(self):
        found = re.findall(r"<svg.*?</svg>", self.source, re.S)
        return [ElementTree.fromstring(drawing) for drawing in found]


@pytest.fixture(scope="module")
def mean_field():
    tree, truth = regression(mean_field=True)
    return Page(render_report(tree, truth))


@pytest.fixture(scope="module")
def classes():
    return Page(render_report(classification()))


@pytest.fixture(scope="module")
def hostile_page():
    return Page(render_report(hostile()))


def test_every_section_in_order(mean_field):
    assert mean_field.sections == ALL_SECTIONS


def test_the_verdict_comes_first_then_failures_then_warnings(mean_field):
    tree, truth = regression(mean_field=True)
    findings = diagnose(tree, truth)
    text = mean_field.text.replace("\u00a0", " ")
    table = text.index("read parameters or structure", text.index("Because"))
    places = [text.index("Do not use this fit to"), text.index("Because"), table]
    for level in ("fail", "warn"):
        serious = [
            finding
            for finding in findings
            if finding.level == level and set(finding.uses) != {"compare"}
        ]
        assert serious
        for finding in serious:
            places.append(text.index(f"{finding.check}\n{finding.message}"))
            assert text.index(finding.advice) < text.index("Model", places[-1])
            assert finding.source in text
    assert places == sorted(places)
    assert places[-1] < text.index("Priors as used")


def test_levels_are_told_by_word_and_sign(mean_field):
    for word, sign in (("Failed", "✕"), ("Warning", "!"), ("Passed", "✓"), ("Note", "i")):
        assert f'aria-hidden="true">{sign}</i>{word}' in mean_field.source


def test_findings_that_are_given_are_shown_and_no_others():
    tree = tree_of({"optimization": {"loss": (("chain", "step"), np.ones((1, 100)))}})
    given = [Finding("own.check", "warn", 2.0, 1.0, "It is odd.", "Do look.", "Somebody (1999)")]
    text = Page(render_report(tree, judgement=Judgement(tuple(given), ("predict",)))).text
    for fragment in ("Use with care to predict", "own.check", "It is odd.", "Do look.", "Somebody"):
        assert fragment in text
    assert "optimisation" not in text


def test_every_prior_score_setting_and_version_is_shown(mean_field):
    for fragment in (
        "mean_field on linear",
        "Normal(0, HalfCauchy(1))",
        "continuous ranked probability score",
        "0.29",
        "weights left after pruning (%)",
        "num_steps",
        "zoo fit --config config.yaml",
        "pyro-ppl",
        "nutpie",
        "Blundell et al. (2015)",
        "HMC (NUTS)",
    ):
        assert fragment in mean_field.text, fragment


def test_figures_have_captions_and_descriptions(mean_field, classes):
    for page in (mean_field, classes):
        assert page.tags.count("figure") == page.tags.count("figcaption") >= 7
        assert page.tags.count("svg") >= 10
        assert all(len(label) > 20 for label in page.labels)


def test_descriptions_hold_the_numbers(mean_field):
    tree, _ = regression(mean_field=True)
    w = tree["posterior"]["w"].to_numpy()[0, :, 1]
    described = next(label for label in mean_field.labels if label.startswith("parameter w[1]"))
    assert f"the fit has mean {w.mean():.3g} and sd {w.std():.3g}" in described


def test_colours_are_those_of_the_page(mean_field):
    drawn = "".join(ElementTree.tostring(d, encoding="unicode") for d in mean_field.drawings)
    # Black and white would vanish on one of the two backgrounds.
    assert not re.search(r"(?:fill|stroke): (?:#|black|white)", drawn)
    for name in VARIABLES.values():
        assert f"var({name})" in drawn
        assert f"{name}: #" in mean_field.source


def test_names_inside_figures_are_unique_and_found(mean_field):
    assert len(mean_field.ids) == len(set(mean_field.ids))
    used = re.findall(r'(?:url\(#|href="#)([\w-]+)', mean_field.source)
    assert used
    assert set(used) <= set(mean_field.ids)


@pytest.mark.parametrize("name", ["mean_field", "classes", "hostile_page"])
def test_page_loads_nothing(name, request):
    page = request.getfixturevalue(name)
    assert all(address.startswith("#") for address in page.addresses)
    assert not set(page.tags) & {"link", "iframe", "object", "embed", "form", "img", "base"}
    assert "://" not in page.source
    assert "@import" not in page.source
    assert not re.search(r"url\((?!#)", page.source)


def test_policy_allows_the_one_script(mean_field):
    (script,) = re.findall(r"<script>(.*?)</script>", mean_field.source, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', mean_field.source)
    rules = html.unescape(policy.group(1)).split("; ")
    assert "default-src 'none'" in rules
    assert f"script-src 'sha256-{digest}'" in rules


def test_hostile_names_stay_text(hostile_page):
    assert hostile_page.tags.count("script") == 1
    assert HOSTILE in hostile_page.text
    assert DOLLARS in hostile_page.text
    assert LONG in hostile_page.text
    assert "{{ 7 * 7 }}" in hostile_page.text
    drawn = " ".join(" ".join(drawing.itertext()) for drawing in hostile_page.drawings)
    for shown in (HOSTILE, DOLLARS, "$\\frac{1}{$", "重み", short(LONG)):
        assert shown in drawn, shown


def test_tree_with_only_a_posterior():
    tree = tree_of(
        {"posterior": {"mu": (("chain", "draw"), np.random.default_rng(0).normal(size=(2, 50)))}}
    )
    page = Page(render_report(tree))
    assert page.sections == ["fitted", "posterior"]
    assert "Not checked whether" in page.text
    assert "mu" in page.text


def test_empty_tree():
    page = Page(render_report(xarray.DataTree()))
    assert page.sections == []
    assert "Posterior" in page.text


def only_draws(tree):
    """Return a tree with nothing but the parameters and outputs, whose page is made quickly."""
    return tree_of({name: tree[name].to_dataset() for name in ("posterior", "functions")})


def test_without_truth_the_page_says_so():
    tree, _ = regression()
    text = Page(render_report(only_draws(tree))).text
    assert "There is no truth to compare with" in text
    assert "HMC (NUTS)" not in text


def test_exact_truth_is_called_so():
    problem = Regression(0)
    truth = problem.truth(kind="exact")
    page = render_report(only_draws(problem.fit()), truth, judgement=NOTHING)
    assert "Variational fit and the exact posterior" in page


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_draws_that_are_broken_do_not_break_the_page(value):
    tree, truth = regression()
    for group in tree.children.values():
        for name in group.data_vars:
            group[name] = xarray.full_like(group[name], value)
    assert "<h1>" in render_report(tree, truth, judgement=NOTHING)
    held_out = classification()["held_out"].to_dataset()
    held_out["probability"] = xarray.full_like(held_out["probability"], value)
    assert "<h1>" in render_report(tree_of({"held_out": held_out}), judgement=NOTHING)


@pytest.mark.parametrize("text", ["{", "[1]", "null", "", 7])
def test_attributes_that_are_no_mapping_leave_their_section_out(text):
    tree = xarray.DataTree()
    tree.attrs |= dict.fromkeys(["config", "priors", "metrics", "groups", "versions"], text)
    assert Page(render_report(tree, judgement=NOTHING)).sections == []


def test_big_trees_make_small_pages():
    names = [f"class {k}" for k in range(100)]
    tree = classification(names, draws=1000, rows=1000, steps=100_000)
    rng = np.random.default_rng(0)
    dims = ("chain", "draw", "weight")
    for k in range(30):
        for group in ("posterior", "prior"):
            tree[group][f"scale{k}"] = xarray.DataArray(rng.normal(size=(1, 1000, 1)), dims=dims)
    slots = {
        f"layers.{k}.weight": {"groups": 500, "kept": 20, "threshold": 0.5, "scores": [0.1] * 500}
        for k in range(60)
    }
    tree.attrs |= attributes(groups=json.dumps({"slots": slots}), task="classification")
    samples = xarray.DataArray(rng.normal(size=(1000, 1000)), dims=("draw", "row"))
    tree["held_out"]["y_samples"] = samples
    page = render_report(tree, judgement=NOTHING)
    assert 200_000 < len(page.encode()) < MAX_BYTES


def test_the_same_tree_gives_the_same_page():
    tree = only_draws(regression()[0])
    assert render_report(tree) == render_report(tree)


def test_density_of_gaussian_draws():
    draws = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    grid, height = density(draws, -4, 4)
    assert np.trapezoid(height, grid) == pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(height, stats.norm.pdf(grid), atol=0.01)


def test_density_counts_what_lies_outside():
    draws = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    grid, height = density(draws, 0, 1)
    assert np.trapezoid(height, grid) == pytest.approx(0.3413, abs=0.01)
    assert density(np.ones(100), 0, 2) is None


def test_parameters_are_scalar_sites_and_identified_ones():
    tree, truth = regression()
    rows = parameter_rows(tree, truth)
    assert [row.name for row in rows] == ["w[0]", "w[1]", "w[2]", "noise"]
    w = tree["posterior"]["w"].to_numpy()[0, :, 2]
    known = truth["posterior"]["w"].to_numpy().reshape(-1, 3)[:, 2]
    np.testing.assert_allclose(rows[2].fit, np.quantile(w, [0.025, 0.25, 0.5, 0.75, 0.975]))
    np.testing.assert_allclose(rows[2].truth[[0, 4]], np.quantile(known, [0.025, 0.975]))
    assert (rows[2].mean, rows[2].sd) == pytest.approx((w.mean(), w.std()))
    assert rows[3].truth is None
    del tree.attrs["identified"]
    assert [row.name for row in parameter_rows(tree, None)] == ["noise"]


def test_parameters_of_other_magnitudes_get_panels_of_their_own():
    rng = np.random.default_rng(0)
    scales = {"large": 1e3, "small": 1e-3, "similar": 2e3}
    draws = {k: (("chain", "draw"), s * rng.normal(size=(1, 50))) for k, s in scales.items()}
    picture = forest_picture(parameter_rows(tree_of({"posterior": draws}), None), "")
    assert [("large" in p, "similar" in p, "small" in p) for p in picture.panels] == [
        (True, True, False),
        (False, False, True),
    ]


def test_power_scaling_of_the_table_is_that_of_the_finding():
    tree, _ = regression()
    table = power_scaling_table(tree)
    (finding,) = power_scaling_findings(tree)
    assert max(prior for prior, _ in table.values()) == pytest.approx(finding.value)
    assert power_scaling_table(tree_of({})) == {}


def test_scores_by_part_of_the_data():
    metrics = {"train.nll": 1.0, "test.nll": 2.0, "test.accuracy": 0.5, "test.own": 3.0, "kl": 4.0}
    table = score_table(metrics)
    assert table.columns == ["score", "training rows", "test rows"]
    assert table.rows == [
        ["accuracy", None, 0.5],
        ["negative log-likelihood per row", 1.0, 2.0],
        ["own", None, 3.0],
    ]
    assert total_table(metrics).rows == [("KL between posterior and prior (nats)", 4.0)]


def test_the_elbo_has_its_error_if_it_is_known():
    """Runs that were stored by an earlier version have none."""
    assert total_table({"elbo": -203.4321, "elbo_error": 0.312}).rows == [
        ("ELBO (nats)", "-203.43 ± 0.31")
    ]
    assert total_table({"elbo": -203.4}).rows == [("ELBO (nats)", -203.4)]
    tree, _ = regression()
    tree.attrs["metrics"] = json.dumps({"elbo": -203.4321, "elbo_error": 0.312})
    assert "-203.43 ± 0.31" in render_report(tree)


def test_values_of_a_configuration_are_written_plainly():
    value = {"a": [1, 2.5], "b": {"c": True}}
    assert plain(value) == "a: 1, 2.5, b: c: yes"


def test_short_names():
    assert short("weight") == "weight"
    assert short("a" * 40 + "b" * 40, 21) == "a" * 10 + "…" + "b" * 10
    assert short("a\x00b\n") == "a\ufffdb\ufffd"


def test_panel_is_plain_svg_with_a_description():
    drawn = ElementTree.fromstring(panel(lambda axes: axes.set_title("$x_1^"), alt='a "b" <c>'))
    assert drawn.tag == "svg"
    assert drawn.get("aria-label") == 'a "b" <c>'
    assert "$x_1^" in "".join(drawn.itertext())


def test_fits_from_other_starts_are_listed():
    tree, _ = regression()
    table = restart_table(tree)
    assert table.columns[:3] == ["start", "ELBO (nats)", "standard error"]
    assert [row[0] for row in table.rows] == ["0 (this fit)", "1", "2"]
    assert table.rows[1][1:4] == (-203.9, 0.3, pytest.approx(-0.77))
    # A shift of a tenth of an sd is less than the noise of 1000 draws, which is taken off.
    assert table.rows[1][4] == pytest.approx(np.sqrt(0.1**2 - 2 / 1000))
    page = Page(render_report(tree))
    assert "0 (this fit)" in page.text
    assert "1 more ended with an ELBO that is not finite" in page.text
    assert restart_table(tree_of({})) is None


def test_no_figure_leaves_half_of_a_wide_page_bare():
    one, two, three = (Picture(["svg"] * n, "") for n in (1, 2, 3))
    cases = [
        ([one], ["beside"]),
        ([one, one], ["half", "half"]),
        ([one, one, one], ["half", "half", "beside"]),
        ([one, two, one], ["beside", "below", "beside"]),
        ([three, one, two], ["beside", "beside", "below"]),
    ]
    for pictures, places in cases:
        assert [place for _, place in _placed(pictures)] == places


def test_comparison():
    names = ["runs/1", HOSTILE, DOLLARS]
    table = pd.DataFrame(
        {"verdict": ["ok", "warn", "fail"], "nll": [0.25, np.nan, 0.5], "prior": ["a", None, "b"]},
        index=names,
    )
    differences = pd.DataFrame({"difference": [0, 0.1, np.nan], "error": [0, 0.05, 1]}, index=names)
    page = Page(render_comparison(table, {"nll": differences}, lead=f"On {HOSTILE}"))
    assert page.tags.count("script") == 1
    assert page.tags.count("tr") == 4
    assert page.text.count("–") == 2
    for fragment in ("Passed", "Warning", "Failed", "0.25", HOSTILE, DOLLARS):
        assert fragment in page.text
    (label,) = page.labels
    assert f"{HOSTILE} 0.1 ± 0.05" in label
    assert DOLLARS not in label
    assert f"Not shown, because not comparable: {DOLLARS}." in page.text
    assert Page(render_comparison(table)).labels == []


def test_the_scale_of_the_elbo_is_that_of_its_end():
    rng = np.random.default_rng(0)
    end = rng.normal(-200, 5, (1, 500))
    warming_up = np.concatenate([np.linspace(5000, -5000, 100)[None], end], axis=1)
    low, high = _limits(warming_up)
    assert -400 < low < end.min()
    assert end.max() < high < 0
    assert _limits(np.full((1, 10), -3.0)) == pytest.approx((-3, -3), abs=0.1)


def test_sites_that_span_decades_are_drawn_by_their_logarithms():
    rng = np.random.default_rng(0)
    prior = {"wide": rng.lognormal(0, 1, (1, 200)), "near": rng.normal(size=(1, 200))}
    posterior = {"wide": 1e9 * prior["wide"], "near": 0.5 * prior["near"]}
    tree = xarray.DataTree.from_dict(
        {
            group: xarray.Dataset({name: (("chain", "draw"), v) for name, v in values.items()})
            for group, values in {"prior": prior, "posterior": posterior}.items()
        }
    )
    picture = prior_picture(tree)
    text = "".join(picture.panels)
    assert "log10 of wide" in text
    assert "log10 of near" not in text
